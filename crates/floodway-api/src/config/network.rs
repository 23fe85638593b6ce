//! Networks: the sections `[[network]]`, and how ports and uplinks name them, without tags (`network`) and with (`tagged`).
//!
//! A network is a VLAN of IEEE 802.1Q: a broadcast domain of its own, whose VLAN identifier (VID) tells it from others. There always is one that is called
//! [`DEFAULT_NETWORK`]; it needs no section, and no VID.

use super::claims::{Taken, name_of};
use super::error::Fault;
use super::keys::{Keys, integer};
use super::section::{Section, nearest};

/// The network of ports and uplinks that name none.
pub const DEFAULT_NETWORK: &str = "default";
/// Keys of the section.
pub(super) const KEYS: &[&str] = &["name", "vid", "isolate", "mtu"];
/// What 802.1Q leaves to networks.
const VIDS: std::ops::RangeInclusive<u16> = 1..=4094;
/// What IPv4 asks of a link at least, and what it can say at most.
const MTUS: std::ops::RangeInclusive<u16> = 68..=65535;
/// MTU of a port where nobody says one: Ethernet's.
const DEFAULT_MTU: u16 = 1500;

/// A network: a section `[[network]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Name by which ports and uplinks refer to it; unique among networks.
    pub name: String,
    /// VLAN identifier, 1 to 4094; unique among networks. Only the network `default` may do without, and has 0 then.
    pub vid: u16,
    /// No frame passes between two of its ports; uplinks are open. Default `false`.
    pub isolate: bool,
    /// Largest IP packet in bytes, 68 to 65535: of its ports unless they say less, and of what is forwarded in it. Default: as ports say.
    pub mtu: Option<u16>,
}

impl NetworkConfig {
    /// A network that isolates nobody and leaves the MTU to its ports.
    #[must_use]
    pub fn new(name: impl Into<String>, vid: u16) -> Self {
        Self { name: name.into(), vid, isolate: false, mtu: None }
    }
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self::new(DEFAULT_NETWORK, 0)
    }
}

/// All networks: the sections in their order, behind the default one if that has none.
pub(super) struct Networks {
    /// Those that have sections.
    pub(super) declared: Vec<NetworkConfig>,
    default: NetworkConfig,
}

impl Networks {
    pub(super) fn of(root: &Section<'_, '_>, taken: &mut Taken) -> Result<Self, Fault> {
        let sections = root.tables("network")?;
        let declared = sections.iter().map(|section| network(section, taken));
        Ok(Self {
            declared: declared.collect::<Result<_, _>>()?,
            default: NetworkConfig::default(),
        })
    }

    fn find(&self, name: &str) -> Option<&NetworkConfig> {
        let implied = || (name == DEFAULT_NETWORK).then_some(&self.default);
        self.declared.iter().find(|network| network.name == name).or_else(implied)
    }

    /// The network that a port or uplink names as its own without tags, or the default one.
    fn named_by(&self, section: &Section<'_, '_>) -> Result<NetworkConfig, Fault> {
        let name = section.string("network")?.unwrap_or(DEFAULT_NETWORK);
        let known = self.find(name).cloned();
        known.ok_or_else(|| section.fault("network", self.unknown(name)))
    }

    /// The network that a port or uplink carries without tags, if there is one, and those that it carries with tags.
    pub(super) fn carried(
        &self,
        section: &Section<'_, '_>,
    ) -> Result<(Option<NetworkConfig>, Vec<NetworkConfig>), Fault> {
        let names =
            section.parsed_list::<String>("tagged", "must be the name of a network", |_| true)?;
        let is_untagged = names.is_none() || section.string("network")?.is_some();
        let untagged = is_untagged.then(|| self.named_by(section)).transpose()?;
        let mut tagged: Vec<NetworkConfig> = Vec::new();
        for name in names.unwrap_or_default() {
            let fault = |problem| section.fault("tagged", format!("{name:?}: {problem}"));
            let network = self.find(&name).ok_or_else(|| fault(self.unknown(&name)))?;
            if network.vid == 0 {
                let problem =
                    "has no VLAN identifier for a tag; add a [[network]] section for it with a vid";
                return Err(fault(problem.to_owned()));
            }
            if untagged.iter().chain(&tagged).any(|known| known.name == name) {
                let problem = "is there already, in this list or as network; remove one of them";
                return Err(fault(problem.to_owned()));
            }
            tagged.push(network.clone());
        }
        Ok((untagged, tagged))
    }

    fn unknown(&self, name: &str) -> String {
        let known: Vec<_> = self.declared.iter().map(|network| &*network.name).collect();
        let near = nearest(name, &known).map(|near| format!("; did you mean \"{near}\"?"));
        let advice = near.unwrap_or_else(|| ", or leave it out".to_owned());
        format!(
            "there is no such network; add a [[network]] section with this name and a vid{advice}"
        )
    }
}

fn network(section: &Section<'_, '_>, taken: &mut Taken) -> Result<NetworkConfig, Fault> {
    section.allow(KEYS)?;
    let name = name_of(section, "tenant1")?;
    taken.networks.claim(section, "name", name.clone())?;
    let vid = section.integer("vid", VIDS)?;
    if let Some(vid) = vid {
        taken.vids.claim(section, "vid", vid.to_string())?;
    } else if name != DEFAULT_NETWORK {
        let problem = "missing; add vid = 10, or another VLAN identifier from 1 to 4094 that no other network has";
        return Err(section.fault("vid", problem));
    }
    let isolate = section.boolean("isolate")?.unwrap_or(false);
    let mtu = section.integer("mtu", MTUS)?;
    Ok(NetworkConfig { name, vid: vid.unwrap_or(0), isolate, mtu })
}

pub(super) fn keys(config: &NetworkConfig) -> Keys {
    let NetworkConfig { name, vid, isolate, mtu } = config;
    Keys::default()
        .set("name", &**name)
        .changed("vid", integer(*vid), 0)
        .changed("isolate", *isolate, false)
        .given("mtu", mtu.map(integer))
}

/// The MTU of a port in these networks that names none: the largest of theirs.
pub(super) fn default_mtu<'a>(networks: impl Iterator<Item = &'a NetworkConfig>) -> u16 {
    networks.map(|network| network.mtu.unwrap_or(DEFAULT_MTU)).max().unwrap_or(DEFAULT_MTU)
}

/// The MTU of the port `section` in these networks.
pub(super) fn mtu_of_port<'a>(
    section: &Section<'_, '_>,
    networks: impl Iterator<Item = &'a NetworkConfig> + Clone,
) -> Result<u16, Fault> {
    let Some(mtu) = section.integer("mtu", MTUS)? else { return Ok(default_mtu(networks)) };
    let largest = networks.max_by_key(|network| network.mtu.unwrap_or(u16::MAX));
    match largest.and_then(|network| Some((network, network.mtu?))) {
        Some((network, limit)) if limit < mtu => {
            let problem = format!(
                "is more than mtu = {limit} of network {:?}; lower it, or raise that",
                network.name
            );
            Err(section.fault("mtu", problem))
        }
        _ => Ok(mtu),
    }
}

/// The keys of a port or uplink that say which networks it carries.
pub(super) fn carried_keys(
    keys: Keys,
    untagged: Option<&NetworkConfig>,
    tagged: &[NetworkConfig],
) -> Keys {
    let names: Vec<_> = tagged.iter().map(|network| network.name.clone()).collect();
    let untagged = untagged.map(|network| &*network.name);
    // Beside others the default network has to be named.
    let untagged = untagged.filter(|name| !names.is_empty() || *name != DEFAULT_NETWORK);
    keys.given("network", untagged).given("tagged", (!names.is_empty()).then_some(names))
}
