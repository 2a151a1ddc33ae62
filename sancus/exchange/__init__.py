"""The exchange: joins plan × policy × codec × transport behind two differentiable calls."""
