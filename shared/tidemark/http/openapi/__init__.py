"""The OpenAPI document of the two surfaces."""
