/// The library whose precompiled header the other libraries share has to have a source.
