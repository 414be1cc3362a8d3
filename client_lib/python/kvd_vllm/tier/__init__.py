"""kvd as a storage of pages."""
