//! What has to hold for any input: fuzz targets and tests feed the same functions. They panic where it does not.

mod source_policy;
mod table;

pub use source_policy::source_policy;
pub use table::mac_table;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// The seeds of a fuzz target, in the order of their names.
    pub fn seeds(target: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let mut paths: Vec<_> =
            fs::read_dir(dir).expect("seeds").map(|entry| entry.expect("a seed").path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
    }

    /// Feeds all seeds of a target.
    pub fn replay(target: &str, check: fn(&[u8])) {
        let seeds = seeds(target);
        assert!(seeds.len() >= 3, "{target} has hardly any seeds");
        seeds.iter().for_each(|seed| check(seed));
    }
}
