"""The exchange: joins plan × policy × codec × transport behind the calls that a model makes."""
