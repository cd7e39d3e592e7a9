(function () {
  "use strict";
  document.querySelectorAll("svg.graph").forEach(function (svg) {
    var status = document.querySelector('.pointed[data-for="' + svg.id + '"]');
    var pinned = null;
    function show(node) {
      svg.querySelectorAll(".lit").forEach(function (part) { part.classList.remove("lit"); });
      svg.classList.toggle("pointing", node !== null);
      if (status) { status.textContent = node ? node.getAttribute("aria-label") : "\u00a0"; }
      if (!node) { return; }
      var own = "n" + node.dataset.node;
      node.classList.add("lit");
      svg.querySelectorAll(".edges ." + own + ", .labels ." + own).forEach(function (part) {
        part.classList.add("lit");
        part.classList.forEach(function (name) {
          if (/^n\d+$/.test(name)) {
            svg.querySelector(".nodes ." + name).classList.add("lit");
          }
        });
      });
    }
    svg.querySelectorAll(".node").forEach(function (node) {
      node.addEventListener("mouseenter", function () { show(node); });
      node.addEventListener("mouseleave", function () { show(pinned); });
      node.addEventListener("focus", function () { show(node); });
      node.addEventListener("blur", function () { show(pinned); });
      node.addEventListener("click", function (event) {
        pinned = pinned === node ? null : node;
        show(pinned);
        event.stopPropagation();
      });
    });
    svg.addEventListener("click", function () { pinned = null; show(null); });
  });
})();
