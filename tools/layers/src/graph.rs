//! Which module depends on which, and in what circles.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Module;

/// Re-exports that a path may lead through.
const MAX_HOPS: u32 = 32;

/// For each module with children: from which child to which, with a path that is the reason.
type Edges = BTreeMap<usize, BTreeMap<(usize, usize), String>>;

/// Returns a description of each circle.
pub fn circles(modules: &[Module]) -> Vec<String> {
    let mut found = Vec::new();
    for edges in edges(modules).values() {
        for circle in components(edges) {
            found.push(describe(modules, edges, &circle));
        }
    }
    found
}

fn edges(modules: &[Module]) -> Edges {
    let mut edges = Edges::new();
    for (from, module) in modules.iter().enumerate() {
        for path in &module.mentions {
            let Some(to) = resolve(modules, from, path, MAX_HOPS) else { continue };
            let Some((parent, edge)) = siblings(modules, from, to) else { continue };
            let reason = format!("{} in {}", path.join("::"), module.file.display());
            edges.entry(parent).or_default().entry(edge).or_insert(reason);
        }
    }
    edges
}

/// The module that defines what a path names, if it is one of the crate's.
fn resolve(modules: &[Module], from: usize, path: &[String], hops: u32) -> Option<usize> {
    let hops = hops.checked_sub(1)?;
    let mut at = from;
    for (depth, name) in path.iter().enumerate() {
        let module = &modules[at];
        match name.as_str() {
            "crate" => at = 0,
            "self" => {}
            "super" => at = module.parent,
            name => match (module.children.get(name), module.imports.get(name)) {
                (Some(&child), _) => at = child,
                // A name that imports itself, as `use child;`, is another crate's.
                (None, Some(import)) if depth > 0 || import.first() != path.first() => {
                    let onward: Vec<_> = import.iter().chain(&path[depth + 1..]).cloned().collect();
                    return resolve(modules, at, &onward, hops);
                }
                _ if depth == 0 => return None,
                _ => return Some(at),
            },
        }
    }
    Some(at)
}

/// The lowest module that has both, and its two children that have one each.
fn siblings(modules: &[Module], a: usize, b: usize) -> Option<(usize, (usize, usize))> {
    let (a, b) = (line(modules, a), line(modules, b));
    let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    Some((a[common - 1], (*a.get(common)?, *b.get(common)?)))
}

/// A module with those above it, from the root.
fn line(modules: &[Module], module: usize) -> Vec<usize> {
    let mut line = vec![module];
    let mut at = module;
    while at != 0 {
        at = modules[at].parent;
        line.push(at);
    }
    line.reverse();
    line
}

/// Groups of modules of which each leads to all others.
fn components(edges: &BTreeMap<(usize, usize), String>) -> BTreeSet<BTreeSet<usize>> {
    let reach = |start: usize| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(at) = next.pop() {
            let onward = edges.keys().filter(|(from, _)| *from == at).map(|(_, to)| *to);
            next.extend(onward.filter(|&to| seen.insert(to)));
        }
        seen
    };
    let nodes: BTreeSet<_> = edges.keys().map(|(from, _)| *from).collect();
    let reached: BTreeMap<_, _> = nodes.iter().map(|&node| (node, reach(node))).collect();
    let circle = |&node: &usize| {
        let others = reached[&node].iter().copied();
        others.filter(|other| reached.get(other).is_some_and(|r| r.contains(&node))).collect()
    };
    nodes.iter().map(circle).filter(|circle: &BTreeSet<usize>| circle.len() > 1).collect()
}

fn describe(
    modules: &[Module],
    edges: &BTreeMap<(usize, usize), String>,
    circle: &BTreeSet<usize>,
) -> String {
    let name = |module: usize| modules[module].name.as_str();
    let names: Vec<_> = circle.iter().map(|&module| name(module)).collect();
    let mut text = format!("circle of {}", names.join(", "));
    for ((from, to), reason) in edges {
        if circle.contains(from) && circle.contains(to) {
            text += &format!("\n    {} -> {}: {reason}", name(*from), name(*to));
        }
    }
    text
}
