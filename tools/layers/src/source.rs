//! Reads the files of a crate into a tree of modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path as it is written: `["super", "a", "B"]`.
pub type Names = Vec<String>;

/// A module, with what it names.
#[derive(Debug, Default)]
pub struct Module {
    /// Its name, empty for the root.
    pub name: String,
    /// Its file, for messages.
    pub file: PathBuf,
    /// Index of its parent; the root is its own.
    pub parent: usize,
    /// Indices of its children.
    pub children: BTreeMap<String, usize>,
    /// Names that `use` brings into its scope, with their paths.
    pub imports: BTreeMap<String, Names>,
    /// Paths in its code.
    pub mentions: Vec<Names>,
    /// Why it cannot be checked, a sentence each.
    pub refused: Vec<String>,
}

/// Adds the file to an error.
pub fn attempt<T, E: std::fmt::Display>(result: Result<T, E>, file: &Path) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the modules of a crate, parents before their children, the root first.
pub fn read(root: &Path) -> Result<Vec<Module>, String> {
    let mut reader = Reader { modules: vec![Module::default()] };
    let folder = root.parent().unwrap_or(root).to_owned();
    reader.file(0, root, &folder)?;
    Ok(reader.modules)
}

struct Reader {
    modules: Vec<Module>,
}

impl Reader {
    /// Reads the file of a module, whose children are in `folder`.
    fn file(&mut self, module: usize, file: &Path, folder: &Path) -> Result<(), String> {
        let text = attempt(std::fs::read_to_string(file), file)?;
        let tokens: TokenStream = attempt(text.parse(), file)?;
        self.modules[module].file = file.to_owned();
        self.tokens(module, tokens, folder, true)
    }

    /// Reads tokens of a module. `top` says that they are not inside of braces of one of its items.
    fn tokens(
        &mut self,
        module: usize,
        tokens: TokenStream,
        folder: &Path,
        top: bool,
    ) -> Result<(), String> {
        let mut rest = Tokens(tokens.into_iter().collect());
        rest.0.reverse();
        while let Some(token) = rest.0.pop() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    self.attribute(module, &mut rest);
                }
                TokenTree::Ident(ident) => match ident.to_string().as_str() {
                    "pub" => drop(rest.group(Delimiter::Parenthesis)),
                    "mod" => self.child(module, &mut rest, folder)?,
                    "use" => self.import(module, rest.until_semicolon(), top),
                    first @ ("crate" | "self" | "super") => {
                        let path = rest.path(first);
                        self.modules[module].mentions.push(path);
                    }
                    _ => {}
                },
                TokenTree::Group(group) => self.tokens(module, group.stream(), folder, false)?,
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        Ok(())
    }

    /// Behind a `#`. An item for tests only is skipped.
    fn attribute(&mut self, module: usize, rest: &mut Tokens) {
        let Some(attribute) = rest.group(Delimiter::Bracket) else { return };
        let text = attribute.stream().to_string().replace(' ', "");
        if text == "cfg(test)" {
            rest.skip_item();
        } else if text.starts_with("path=") {
            let message = format!("{} has a #[{text}]", self.modules[module].file.display());
            self.modules[module].refused.push(message);
        }
    }

    /// Behind `mod`.
    fn child(&mut self, parent: usize, rest: &mut Tokens, folder: &Path) -> Result<(), String> {
        let Some(TokenTree::Ident(name)) = rest.0.pop() else { return Ok(()) };
        let name = name.to_string();
        let child = self.modules.len();
        let file = self.modules[parent].file.clone();
        self.modules.push(Module { name: name.clone(), file, parent, ..Module::default() });
        self.modules[parent].children.insert(name.clone(), child);
        let below = folder.join(&name);
        if let Some(body) = rest.group(Delimiter::Brace) {
            return self.tokens(child, body.stream(), &below, true);
        }
        let files = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
        let Some(file) = files.iter().find(|file| file.exists()) else {
            return Err(format!("{}: no such file", files[0].display()));
        };
        self.file(child, file, &below)
    }

    /// Notes what a `use` brings in.
    fn import(&mut self, module: usize, tree: Vec<TokenTree>, top: bool) {
        let mut leaves = Vec::new();
        flatten(&[], tree, &mut leaves);
        for (path, name) in leaves {
            let this = &mut self.modules[module];
            if name == "*" && is_own(this, &path) {
                let file = this.file.display();
                this.refused.push(format!("{file} imports {}::*", path.join("::")));
            }
            this.mentions.push(path.clone());
            if top {
                this.imports.insert(name, path);
            }
        }
    }
}

/// Returns `true` if a path leads to a module of the crate.
fn is_own(module: &Module, path: &[String]) -> bool {
    path.first().is_some_and(|first| {
        matches!(first.as_str(), "crate" | "self" | "super") || module.children.contains_key(first)
    })
}

/// Adds the paths of a `use` tree, with the names that they get.
fn flatten(prefix: &[String], tree: Vec<TokenTree>, leaves: &mut Vec<(Names, String)>) {
    let mut path = prefix.to_vec();
    let mut tokens = tree.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(ident) if ident == "as" => {
                let alias = tokens.next().map(|alias| alias.to_string()).unwrap_or_default();
                return leaves.push((path, alias));
            }
            TokenTree::Ident(ident) if ident == "self" && path.len() > prefix.len().min(1) => {}
            TokenTree::Ident(ident) => path.push(ident.to_string()),
            TokenTree::Punct(punct) if punct.as_char() == '*' => {
                return leaves.push((path, "*".to_owned()));
            }
            TokenTree::Group(group) => {
                for branch in branches(&group) {
                    flatten(&path, branch, leaves);
                }
                return;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    if let Some(name) = path.last().cloned() {
        leaves.push((path, name));
    }
}

/// Divides what is in braces at its commas.
fn branches(group: &Group) -> Vec<Vec<TokenTree>> {
    let mut branches = vec![Vec::new()];
    for token in group.stream() {
        match &token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => branches.push(Vec::new()),
            _ => branches.last_mut().expect("there is one").push(token),
        }
    }
    branches.retain(|branch| !branch.is_empty());
    branches
}

/// Tokens to come, the next one last.
struct Tokens(Vec<TokenTree>);

impl Tokens {
    fn next_is(&self, char: char) -> bool {
        matches!(self.0.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == char)
    }

    /// Takes a group, if it comes next.
    fn group(&mut self, delimiter: Delimiter) -> Option<Group> {
        match self.0.last() {
            Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
                let group = group.clone();
                self.0.pop();
                Some(group)
            }
            _ => None,
        }
    }

    /// Takes what comes up to a semicolon, and that.
    fn until_semicolon(&mut self) -> Vec<TokenTree> {
        let mut taken = Vec::new();
        while !self.0.is_empty() && !self.next_is(';') {
            taken.extend(self.0.pop());
        }
        self.0.pop();
        taken
    }

    /// Takes an item: up to a semicolon or braces.
    fn skip_item(&mut self) {
        while let Some(token) = self.0.pop() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ';' => return,
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
                _ => {}
            }
        }
    }

    /// Takes the rest of a path.
    fn path(&mut self, first: &str) -> Names {
        let mut path = vec![first.to_owned()];
        while let [.., TokenTree::Ident(ident), TokenTree::Punct(b), TokenTree::Punct(a)] =
            self.0.as_slice()
            && (a.as_char(), b.as_char()) == (':', ':')
        {
            path.push(ident.to_string());
            self.0.truncate(self.0.len() - 3);
        }
        path
    }
}
