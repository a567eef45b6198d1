//! Sizes, shares and times as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a text is not a quantity.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidUnit {
    /// Not a size in bytes.
    #[error("`{0}` is not a size: write a whole number with b, k, m or g, such as `512m` or `2g`")]
    Memory(String),
    /// Too little for any program.
    #[error("`{0}` is below the smallest size, {least}", least = MemorySize::SMALLEST)]
    TooSmall(String),
    /// Not a number of processors.
    #[error("`{0}` is not a number of cpus: write a number above 0 and up to 1024, such as `1.0` or `2`")]
    Cpus(String),
    /// Not a length of time.
    #[error(
        "`{0}` is not a time: write seconds or a number with s, m or h, such as `90s`, `10m` or `2h`, up to a year"
    )]
    Time(String),
}

/// A size in bytes. Written the way container engines write it: `512m`, `2g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MemorySize(u64);

impl MemorySize {
    /// The smallest memory limit with which any program starts at all; below it engines refuse as well.
    pub const SMALLEST: MemorySize = MemorySize(6 << 20);

    /// More than any machine has.
    const LARGEST: u64 = 1 << 50;

    /// A size that a limit on memory can have.
    pub fn parse_limit(text: &str) -> Result<Self, InvalidUnit> {
        let size: Self = text.parse()?;
        if size < Self::SMALLEST { Err(InvalidUnit::TooSmall(text.to_owned())) } else { Ok(size) }
    }

    /// So many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

const SCALES: [(char, u64); 4] = [('g', 1 << 30), ('m', 1 << 20), ('k', 1 << 10), ('b', 1)];

impl FromStr for MemorySize {
    type Err = InvalidUnit;
    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let bad = || InvalidUnit::Memory(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let (digits, scale) = SCALES
            .iter()
            .find_map(|(suffix, scale)| lower.strip_suffix(*suffix).map(|digits| (digits, *scale)))
            .unwrap_or((lower.as_str(), 1));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let count: u64 = digits.parse().map_err(|_| bad())?;
        let bytes = count.checked_mul(scale).filter(|bytes| (1..=Self::LARGEST).contains(bytes));
        bytes.map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (suffix, scale) =
            SCALES.iter().find(|(_, scale)| self.0.is_multiple_of(*scale)).copied().unwrap_or(('b', 1));
        write!(f, "{}{suffix}", self.0 / scale)
    }
}

/// A share of the processors, in thousandths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "TextOrNumber", into = "String")]
pub struct Cpus(u32);

/// People write `"1.0"` as the documents do, and `1.5` as one would.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Number(f64),
}

impl TryFrom<TextOrNumber> for Cpus {
    type Error = InvalidUnit;
    fn try_from(given: TextOrNumber) -> Result<Self, InvalidUnit> {
        match given {
            TextOrNumber::Text(text) => text.parse(),
            TextOrNumber::Number(number) => number.to_string().parse(),
        }
    }
}

impl Cpus {
    /// In thousandths of a processor.
    pub fn millis(self) -> u32 {
        self.0
    }
}

impl FromStr for Cpus {
    type Err = InvalidUnit;
    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let bad = || InvalidUnit::Cpus(text.to_owned());
        let plain = text.trim();
        if !plain.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(bad());
        }
        let value: f64 = plain.parse().map_err(|_| bad())?;
        let millis = (value * 1000.0).round();
        if (1.0..=1_024_000.0).contains(&millis) { Ok(Self(millis as u32)) } else { Err(bad()) }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        let short = text.trim_end_matches('0');
        f.write_str(short)?;
        if short.ends_with('.') { f.write_str("0") } else { Ok(()) }
    }
}

/// A length of time, above zero, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub struct Seconds(u64);

impl Seconds {
    /// The longest that can be asked for: a year.
    pub const LONGEST: u64 = 365 * 24 * 3600;

    /// That long.
    pub const MAX: Self = Self(Self::LONGEST);

    /// So many seconds, if that is a time one can wait.
    pub const fn new(count: u64) -> Option<Self> {
        if count >= 1 && count <= Self::LONGEST { Some(Self(count)) } else { None }
    }

    /// As a number.
    pub fn count(self) -> u64 {
        self.0
    }

    /// As the standard library has it.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl FromStr for Seconds {
    type Err = InvalidUnit;
    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let bad = || InvalidUnit::Time(text.to_owned());
        let plain = text.trim();
        let (digits, scale) = [('h', 3600), ('m', 60), ('s', 1)]
            .into_iter()
            .find_map(|(suffix, scale)| plain.strip_suffix(suffix).map(|digits| (digits, scale)))
            .unwrap_or((plain, 1));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let count: u64 = digits.parse().map_err(|_| bad())?;
        count.checked_mul(scale).and_then(Self::new).ok_or_else(bad)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            hours if hours.is_multiple_of(3600) => write!(f, "{} h", hours / 3600),
            minutes if minutes.is_multiple_of(60) => write!(f, "{} min", minutes / 60),
            seconds => write!(f, "{seconds} s"),
        }
    }
}

impl TryFrom<String> for MemorySize {
    type Error = InvalidUnit;
    fn try_from(text: String) -> Result<Self, InvalidUnit> {
        text.parse()
    }
}

impl From<MemorySize> for String {
    fn from(size: MemorySize) -> String {
        size.to_string()
    }
}

impl From<Cpus> for String {
    fn from(cpus: Cpus) -> String {
        cpus.to_string()
    }
}

impl TryFrom<u64> for Seconds {
    type Error = InvalidUnit;
    fn try_from(count: u64) -> Result<Self, InvalidUnit> {
        Self::new(count).ok_or_else(|| InvalidUnit::Time(count.to_string()))
    }
}

impl From<Seconds> for u64 {
    fn from(value: Seconds) -> u64 {
        value.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Cpus, MemorySize, Seconds};

    #[test]
    fn sizes_are_read_as_engines_read_them() {
        assert_eq!("2g".parse::<MemorySize>().unwrap().bytes(), 2 << 30);
        assert_eq!("512M".parse::<MemorySize>().unwrap().to_string(), "512m");
        assert_eq!("1500".parse::<MemorySize>().unwrap().to_string(), "1500b");
        for bad in [
            "",
            "g",
            "2gb",
            "-1g",
            "0",
            "1.5g",
            "2 g",
            "99999999999999999999",
            "18446744073709551615g",
            "18446744073709551615",
        ] {
            assert!(bad.parse::<MemorySize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus_are_a_positive_decimal() {
        assert_eq!("1.0".parse::<Cpus>().unwrap().to_string(), "1.0");
        assert_eq!("0.25".parse::<Cpus>().unwrap().to_string(), "0.25");
        for bad in ["", "0", "-1", "1e3", "nan", "inf", "2000", ".", "1.2.3"] {
            assert!(bad.parse::<Cpus>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_seconds_unless_said_otherwise() {
        assert_eq!("90".parse::<Seconds>().unwrap().count(), 90);
        assert_eq!("10m".parse::<Seconds>().unwrap().to_string(), "10 min");
        for bad in ["0", "", "m", "-5", "1d", "10 m m", "99999999h"] {
            assert!(bad.parse::<Seconds>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_size_reads_back(bytes in 1u64..=1 << 50) {
            let size = MemorySize::from_bytes(bytes);
            prop_assert_eq!(size.to_string().parse::<MemorySize>().unwrap(), size);
        }

        #[test]
        fn no_text_makes_the_readers_panic(text in ".*") {
            let _ = (text.parse::<MemorySize>(), text.parse::<Cpus>(), text.parse::<Seconds>());
        }
    }
}
