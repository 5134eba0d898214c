//! Integration tests: clients that send nothing, half a request, garbage, or do not read.

mod clients;
mod floods;
mod stopping;
