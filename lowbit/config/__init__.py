"""Configs with PaddleClas's sections: read, overridden, validated."""
