//! Parsing, checksums and segmentation: one binary, so that it is linked once.

mod checksum;
mod name;
mod offload;
mod parse;
mod support;
