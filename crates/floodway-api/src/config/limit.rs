//! What a port may send and receive: the section `[port.limit]`.

use floodway_core::l2::{MIN_BURST_BYTES, Rate};

use super::error::Fault;
use super::keys::{Keys, integer};
use super::section::Section;

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] =
    &["tx_rate_kbit", "tx_burst_bytes", "tx_pps", "rx_rate_kbit", "rx_burst_bytes", "rx_pps"];

/// Fastest rate that can be named, in kbit/s: 1 Tbit/s.
const MAX_RATE_KBIT: u64 = 1_000_000_000;
/// Bytes per second of a kbit/s.
const KBIT: u64 = 125;

/// Limits of a port in both directions. Rates are 1 kbit/s to 1 Tbit/s and 1 to 2^32 - 1 packets per second, bursts 256 KiB to 1 GiB. Default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitConfig {
    /// What the guest sends.
    pub tx: Rate,
    /// What the guest receives.
    pub rx: Rate,
}

/// The limits of the port `port`.
pub(super) fn section(port: &Section<'_, '_>) -> Result<LimitConfig, Fault> {
    let Some(section) = port.table("limit")? else {
        return Ok(LimitConfig::default());
    };
    section.allow(KEYS)?;
    Ok(LimitConfig {
        tx: rate(&section, ["tx_rate_kbit", "tx_burst_bytes", "tx_pps"])?,
        rx: rate(&section, ["rx_rate_kbit", "rx_burst_bytes", "rx_pps"])?,
    })
}

fn rate(
    section: &Section<'_, '_>,
    [rate_kbit, burst_bytes, pps]: [&str; 3],
) -> Result<Rate, Fault> {
    let bytes = section.integer(rate_kbit, 1..=MAX_RATE_KBIT)?.map(|kbit| kbit * KBIT);
    let burst = section.integer(burst_bytes, MIN_BURST_BYTES..=1 << 30)?;
    if bytes.is_none() && burst.is_some() {
        let problem = format!("has no effect without {rate_kbit}; add that, or remove this");
        return Err(section.fault(burst_bytes, problem));
    }
    Ok(Rate { bytes, burst, packets: section.integer(pps, 1..=u64::from(u32::MAX))? })
}

/// The section that says `config`.
pub(super) fn keys(config: &LimitConfig) -> Keys {
    let LimitConfig { tx, rx } = config;
    let keys = rate_keys(Keys::default(), tx, ["tx_rate_kbit", "tx_burst_bytes", "tx_pps"]);
    rate_keys(keys, rx, ["rx_rate_kbit", "rx_burst_bytes", "rx_pps"])
}

fn rate_keys(keys: Keys, rate: &Rate, [rate_kbit, burst_bytes, pps]: [&str; 3]) -> Keys {
    let Rate { bytes, burst, packets } = rate;
    keys.given(rate_kbit, bytes.map(|bytes| integer(bytes / KBIT)))
        .given(burst_bytes, burst.map(integer))
        .given(pps, packets.map(integer))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    #[test]
    fn limits_are_read_and_checked() {
        let parse = |keys: &str| {
            let port = "[[port]]\nname = \"vm1\"\nsocket = \"/tmp/s\"\n[port.limit]\n";
            let config = Config::parse(&format!("{port}{keys}"), "f.toml".as_ref());
            config.map(|config| config.ports[0].limit).map_err(|error| error.to_string())
        };
        let tx = Rate { bytes: Some(125_000_000), burst: Some(1 << 20), packets: None };
        let rx = Rate { packets: Some(1000), ..Rate::default() };
        let text = "tx_rate_kbit = 1_000_000\ntx_burst_bytes = 0x100000\nrx_pps = 1000";
        assert_eq!(parse(text), Ok(LimitConfig { tx, rx }));
        let cases = [
            ("tx_rate_kbit = 0", "tx_rate_kbit = 0: must be an integer from 1 to 1000000000"),
            ("rx_pps = 0", "rx_pps = 0: must be an integer from 1 to 4294967295"),
            (
                "rx_rate_kbit = 9\nrx_burst_bytes = 1500",
                "rx_burst_bytes = 1500: must be an integer from 262144 to 1073741824",
            ),
            (
                "rx_burst_bytes = 300000",
                "rx_burst_bytes = 300000: has no effect without rx_rate_kbit; add that, or remove this",
            ),
        ];
        for (keys, expected) in cases {
            let error = parse(keys).unwrap_err();
            assert!(error.ends_with(&format!("port[0] \"vm1\".limit.{expected}")), "{error}");
        }
    }
}
