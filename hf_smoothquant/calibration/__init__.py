"""Calibration: data sources (`data`), what the Linears see of them (`observer`), and the loop that joins both (`runner`)."""
