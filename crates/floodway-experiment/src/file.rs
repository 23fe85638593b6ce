//! The file of an experiment.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use floodway_report::about::Figure;
use floodway_report::{About, Band};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// An experiment's file, with scenarios of the kinds that `S` knows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File<S> {
    /// Name of the report and of its directory: lower-case letters, digits, dashes and underscores.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What it asks.
    #[serde(default)]
    pub question: String,
    /// The sentence that answers it, with `{}` for the first headline.
    #[serde(default)]
    pub answer: String,
    /// What the paper says, and where; or that it says nothing.
    #[serde(default)]
    pub paper: String,
    /// What is judged, and why so.
    #[serde(default)]
    pub judged: String,
    /// Names of the rows that answer the question, the first one first; `*` stands for any text.
    #[serde(default)]
    pub headline: Vec<String>,
    /// What its page draws first.
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// What to do.
    pub scenario: S,
    /// Which figures are accepted.
    #[serde(default)]
    pub band: Vec<Band>,
    /// What the simulator needs beyond that.
    pub sim: Option<toml::Table>,
}

impl<S> File<S> {
    /// What it says to readers of its reports.
    #[must_use]
    pub fn about(&self) -> About {
        About {
            title: self.title.clone(),
            question: self.question.clone(),
            answer: self.answer.clone(),
            paper: self.paper.clone(),
            judged: self.judged.clone(),
            headline: self.headline.clone(),
            figure: self.figure.clone(),
            ..About::default()
        }
    }
}

impl<S: DeserializeOwned> File<S> {
    /// Reads an experiment file.
    ///
    /// # Errors
    /// When it cannot be read or is not an experiment; the error names the key.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read experiment {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("experiment {}", path.display()))
    }

    /// Reads an experiment from text.
    ///
    /// # Errors
    /// When it is not an experiment; the error names the key.
    pub fn parse(text: &str) -> Result<Self> {
        let experiment: Self = toml::from_str(text)?;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        ensure!(
            !experiment.name.is_empty() && experiment.name.chars().all(fits),
            "name = {:?}: use lower-case letters, digits, dashes and underscores",
            experiment.name
        );
        Ok(experiment)
    }
}

/// All experiment files of a directory, by name.
///
/// # Errors
/// When the directory cannot be read.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both worlds' bands of an experiment.
    fn bands(file: &File<toml::Table>) -> Vec<Band> {
        let own = file.sim.as_ref().and_then(|sim| sim.get("band")).cloned();
        let simulated: Vec<Band> = own.map_or_else(Vec::new, |own| own.try_into().unwrap());
        file.band.iter().cloned().chain(simulated).collect()
    }

    fn all() -> Vec<File<toml::Table>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let all: Vec<_> =
            files(&dir).unwrap().iter().map(|file| File::load(file).unwrap()).collect();
        assert!(all.len() > 40, "{} experiments", all.len());
        all
    }

    #[test]
    fn every_band_of_the_project_can_be_missed() {
        let weak: Vec<_> = all()
            .iter()
            .flat_map(|file| bands(file).into_iter().map(|band| (file.name.clone(), band)))
            .filter_map(|(name, band)| {
                Some(format!("{name}: {:?} {}", band.rows, band.weakness()?))
            })
            .collect();
        assert!(weak.is_empty(), "{weak:#?}");
    }

    #[test]
    fn every_experiment_asks_something_and_says_what_is_judged() {
        for file in all() {
            let about = file.about();
            assert!(about.question.ends_with('?'), "{}: question", file.name);
            assert!(!about.paper.is_empty() && !about.judged.is_empty(), "{}", file.name);
            assert!(
                about.answer.is_empty() || about.answer.contains("{}"),
                "{}: answer",
                file.name
            );
            let is_judged = !bands(&file).is_empty() || about.judged.starts_with("Nothing");
            assert!(is_judged, "{}: no band, though it says that something is judged", file.name);
        }
    }
}
