"""Calibration: data sources (`data`), what the Linears see of them (`observer`), the loop between (`runner`)."""
