//! Numbers in at most five characters.

/// `n` with a decimal prefix: "0", "7", "1.2k", "340M".
#[must_use]
pub fn decimal(n: f64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T", "P"])
}

/// Bytes with a binary prefix: "0", "512", "1.2K", "340M".
#[must_use]
pub fn binary(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["", "K", "M", "G", "T", "P"])
}

/// Two digits at least, three at most before the prefix.
fn scaled(n: f64, base: f64, prefixes: &[&str]) -> String {
    let (mut n, mut place) = (n.max(0.0), 0);
    // What would be rounded up to four digits belongs to the next prefix.
    while n >= 999.5 && place + 1 < prefixes.len() {
        n /= base;
        place += 1;
    }
    let prefix = prefixes[place];
    match (place, n) {
        (0, 0.05..0.95) => format!("{n:.1}"),
        (1.., ..9.95) => format!("{n:.1}{prefix}"),
        _ => format!("{n:.0}{prefix}"),
    }
}

/// Seconds as "0", "850us", "1.2ms", "35ms", "2.1s", "90s".
#[must_use]
pub fn delay(seconds: f64) -> String {
    let us = seconds * 1e6;
    match us {
        ..0.5 => "0".to_owned(),
        ..999.5 => format!("{us:.0}us"),
        ..9_950.0 => format!("{:.1}ms", us / 1e3),
        ..999_500.0 => format!("{:.0}ms", us / 1e3),
        ..9_950_000.0 => format!("{seconds:.1}s"),
        _ => format!("{seconds:.0}s"),
    }
}

/// A share as "0%", "0.4%", "37%", "250%".
#[must_use]
pub fn percent(share: f64) -> String {
    let n = share * 100.0;
    match n {
        0.05..9.95 => format!("{n:.1}%"),
        _ => format!("{n:.0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_two_or_three_digits() {
        let numbers = [0.0, 0.04, 0.5, 7.0, 999.4, 999.6, 1234.0, 99_960.0, 1.24e9, 9.99e16];
        let texts = ["0", "0", "0.5", "7", "999", "1.0k", "1.2k", "100k", "1.2G", "100P"];
        assert_eq!(numbers.map(decimal), texts);
        let bytes = [512.0, 1023.0, 1024.0, 4_194_304.0, 1e9];
        assert_eq!(bytes.map(binary), ["512", "1.0K", "1.0K", "4.0M", "954M"]);
    }

    #[test]
    fn delays_and_shares() {
        let seconds = [0.0, 850e-6, 999.6e-6, 0.0123, 0.9999, 2.14, 90.0];
        assert_eq!(seconds.map(delay), ["0", "850us", "1.0ms", "12ms", "1.0s", "2.1s", "90s"]);
        assert_eq!([0.0, 0.004, 0.37, 2.5].map(percent), ["0%", "0.4%", "37%", "250%"]);
    }

    #[test]
    fn nothing_is_wider_than_its_column() {
        for place in 0..16 {
            for n in 1..200 {
                let n = f64::from(n) * 10_f64.powi(place - 3);
                assert!(decimal(n).len() <= 4 && binary(n).len() <= 4, "{n}");
                assert!(delay(n.min(9e3)).len() <= 5, "{n}");
            }
        }
    }
}
