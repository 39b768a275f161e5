"""The episode catalog: Parquet files, their index, and queries."""
