//! Sizes in bytes, as people write and read them.

/// Reads `4MiB`, `64K`, `2GB`, `1.5GiB` or `1_000_000`. `K`, `M`, `G` and `T` are powers of 1024, as with `iB`;
/// with `B` they are powers of 1000.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write one like 4MiB, 64K, 2GB or 1_000_000");
    let trimmed = text.trim();
    let unit_at = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(unit_at);
    let number = number.trim_end().replace('_', "");
    let unit = unit_bytes(unit).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || number.ends_with('.') {
        return Err(wrong());
    }
    let too_large = || format!("`{text}` is more bytes than 64 bits can count");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let bytes = whole.checked_mul(unit).ok_or_else(too_large)?;
    bytes.checked_add(fraction_bytes(fraction, unit).ok_or_else(wrong)?).ok_or_else(too_large)
}

/// A size in the largest unit of which it is a whole multiple.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let (unit, name) = UNITS
        .into_iter()
        .map(|(power, name)| (1u64 << (10 * power), name))
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .unwrap_or((1, "bytes"));
    format!("{} {name}", bytes / unit)
}

/// About how large a size is: one digit behind the point.
pub(crate) fn show_about(bytes: u64) -> String {
    let Some((power, name)) = UNITS.into_iter().find(|(power, _)| bytes >> (10 * power) > 0) else {
        return format!("{bytes} bytes");
    };
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" || unit == "bytes" {
        return Some(1);
    }
    let power = u32::try_from("kmgt".find(unit.chars().next()?)?).ok()? + 1;
    match &unit[1..] {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// `0.fraction` of a unit, if that is a whole number of bytes.
fn fraction_bytes(fraction: &str, unit: u64) -> Option<u64> {
    let digits = fraction.trim_end_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let parts = 10u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let product = digits.parse::<u128>().ok()?.checked_mul(u128::from(unit))?;
    if !product.is_multiple_of(parts) {
        return None;
    }
    u64::try_from(product / parts).ok()
}

const UNITS: [(u32, &str); 4] = [(4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_all_their_spellings() {
        let sizes = [
            ("0", 0),
            ("17", 17),
            ("17b", 17),
            ("1_000_000", 1_000_000),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("64kB", 64_000),
            ("4MiB", 4 << 20),
            ("4 MiB", 4 << 20),
            ("2GB", 2_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.5K", 512),
            ("3T", 3 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "MiB", "4XiB", "4MiBs", "-4", "1.", "1.5", "0.3K", ".5K", "1e6", "0x10", "4M4", "17TiBB", "ä",
        ] {
            let refused = parse_bytes(text).unwrap_err();
            assert!(refused.contains("no size"), "{text}: {refused}");
        }
        for text in ["18446744073709551616", "16777216TiB", "20000000TB"] {
            let refused = parse_bytes(text).unwrap_err();
            assert!(refused.contains("64 bits"), "{text}: {refused}");
        }
    }

    #[test]
    fn sizes_are_shown_as_people_write_them() {
        assert_eq!(show_bytes(4 << 20), "4 MiB");
        assert_eq!(show_bytes(0), "0 bytes");
        assert_eq!(show_bytes(1000), "1000 bytes");
        assert_eq!(show_bytes(3 << 29), "1536 MiB");
        assert_eq!(show_about(1000), "1000 bytes");
        assert_eq!(show_about(3 << 29), "1.5 GiB");
        assert_eq!(show_about(u64::MAX), "16777215.9 TiB");
    }
}
