"""What a loaded model computes with: the border to the C core, the engine, answers from scores, the CPUs there are."""
