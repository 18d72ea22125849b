"""What a loaded model computes with: the engine, answers from scores, the CPUs there are."""
