"""Writers of one artefact each: StableHLO, SavedModel in two flavours, ONNX."""
