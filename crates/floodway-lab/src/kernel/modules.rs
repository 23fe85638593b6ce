//! The modules of a kernel, and what each needs.
//!
//! An unpacked package has no `modules.dep`, which depmod makes at installation, so dependencies come
//! from where depmod gets them: the `depends=` entry in a module's `.modinfo` section.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The modules of one kernel by name.
#[derive(Debug)]
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

/// A module, ready to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Name with underscores, as lsmod prints it.
    pub name: String,
    /// The uncompressed object.
    pub object: Vec<u8>,
    /// Names of the modules that it needs directly.
    pub depends: Vec<String>,
    /// Other names, perhaps with wildcards, under which the kernel asks for it (`net-sch-ingress`).
    pub aliases: Vec<String>,
}

impl Modules {
    /// Finds the modules below `/lib/modules/RELEASE`.
    pub(super) fn index(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        find_files(&dir.join("kernel"), &mut files)
            .with_context(|| format!("cannot list the modules in {}", dir.display()))?;
        let list = dir.join("modules.builtin");
        let built_in = fs::read_to_string(&list)
            .with_context(|| format!("cannot read {}", list.display()))?
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(Self { files, built_in })
    }

    /// Reads the wanted modules and all that they need, each after what it needs. Whatever is built
    /// into the kernel is left out.
    ///
    /// # Errors
    /// When the kernel has no such module, or a file cannot be read.
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut resolved = Vec::new();
        for name in wanted {
            self.add(&name.replace('-', "_"), &mut resolved)?;
        }
        Ok(resolved)
    }

    /// Whether the kernel has it, built in or as a module.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.built_in.contains(name) || self.files.contains_key(name)
    }

    fn add(&self, name: &str, resolved: &mut Vec<Module>) -> Result<()> {
        if self.built_in.contains(name) || resolved.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let path =
            self.files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
        let object = read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (depends, aliases) = (dependencies(&object), information(&object, "alias"));
        for dependency in &depends {
            self.add(dependency, resolved)?;
        }
        resolved.push(Module { name: name.to_owned(), object, depends, aliases });
        Ok(())
    }
}

fn find_files(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find_files(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// `kernel/net/sch-x.ko.xz` is module `sch_x`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let name = file.strip_suffix(".xz").unwrap_or(file).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(fs::read(path)?),
        Some("xz") => decompress(path),
        _ => bail!("neither .ko nor .ko.xz"),
    }
}

fn decompress(path: &Path) -> Result<Vec<u8>> {
    let mut xz = Command::new("xz");
    xz.arg("--decompress").arg("--stdout").arg(path).stdin(Stdio::null());
    let output = xz.output().context("cannot run xz; `apt-get install xz-utils` brings it")?;
    ensure!(output.status.success(), "xz: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

/// The names in the `depends=` entry.
fn dependencies(object: &[u8]) -> Vec<String> {
    let lists = information(object, "depends");
    let names = lists.iter().flat_map(|list| list.split(','));
    names.filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// The values of a key. Entries of `.modinfo` are strings between NULs.
fn information(object: &[u8], key: &str) -> Vec<String> {
    let key = [b"\0", key.as_bytes(), b"="].concat();
    let starts = object.windows(key.len()).enumerate().filter(|(_, window)| *window == key);
    let values = starts.map(|(at, _)| {
        object[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default()
    });
    values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, objects: &[(&str, &str)]) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("floodway-modules-{}-{name}", std::process::id()));
        fs::create_dir_all(dir.join("kernel/net")).unwrap();
        for (file, depends) in objects {
            let object =
                format!("ELF\0license=GPL\0alias=y-{file}\0alias=z\0depends={depends}\0name=x\0");
            fs::write(dir.join("kernel/net").join(file), object).unwrap();
        }
        fs::write(dir.join("modules.builtin"), "kernel/lib/in-kernel.ko\n").unwrap();
        dir
    }

    #[test]
    fn modules_come_after_what_they_need_once_each() {
        let dir = tree(
            "order",
            &[("a.ko", "b-1,in_kernel"), ("b-1.ko", "c"), ("c.ko", ""), ("d.ko", "c")],
        );
        let modules = Modules::index(&dir).unwrap();
        let resolved = modules.resolve(&["a", "in_kernel", "d"]).unwrap();
        let names: Vec<_> = resolved.iter().map(|module| &module.name[..]).collect();
        assert_eq!(names, ["c", "b_1", "a", "d"]);
        assert_eq!(resolved[1].aliases, ["y-b-1.ko", "z"]);
        assert!(modules.has("in_kernel") && modules.has("b_1") && !modules.has("e"));
        assert!(modules.resolve(&["e"]).unwrap_err().to_string().contains("no module e"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn compressed_modules_are_decompressed() {
        let dir = tree("xz", &[("a.ko", "b"), ("b.ko", "")]);
        process_xz(&dir.join("kernel/net/a.ko"));
        let modules = Modules::index(&dir).unwrap().resolve(&["a"]).unwrap();
        assert_eq!(modules.len(), 2);
        assert!(modules[1].object.starts_with(b"ELF"));
        fs::remove_dir_all(dir).unwrap();
    }

    fn process_xz(path: &Path) {
        assert!(Command::new("xz").arg(path).status().unwrap().success());
    }
}
