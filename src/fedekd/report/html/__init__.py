"""The report as one HTML page: charts in Vega-Lite, each in a file of its own, and the page that holds them."""
