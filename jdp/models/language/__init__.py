"""Language models: the LSTM and transformers, their losses and metrics."""
