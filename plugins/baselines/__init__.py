"""Networks to compare with: RetNet, DT-RetNet and flow matching."""
