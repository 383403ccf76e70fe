//! The firmware's sensors and limits: power, clocks, fan; and throttling.
//!
//! The driver's settings last until the chip is reset. Attributes are those of cpucp_if.h, to which
//! the driver maps hwmon's (hwmon.c `hl_read`, `hl_write`).

use gaudi_spec::gaudi2::firmware::{attribute, packet};

/// hwmon's sensor types (linux/hwmon.h `enum hwmon_sensor_types`) and the attributes of each sensor
/// of this card, as bits (driver hwmon.c `hl_build_hwmon_channel_info`). The fan is left out: the
/// numbers of its types moved when Linux gained `hwmon_energy64`.
pub(super) const SENSORS: [(u32, u32); 5] = [
    (HWMON_TEMPERATURE, TEMPERATURE),
    (HWMON_TEMPERATURE, TEMPERATURE),
    (HWMON_VOLTAGE, PLAIN),
    (HWMON_CURRENT, PLAIN),
    (
        HWMON_POWER,
        bits(&[
            attribute::POWER_INPUT,
            attribute::POWER_HIGHEST,
            attribute::POWER_RESET_HISTORY,
        ]),
    ),
];

const HWMON_TEMPERATURE: u32 = 1;
const HWMON_VOLTAGE: u32 = 2;
const HWMON_CURRENT: u32 = 3;
const HWMON_POWER: u32 = 4;
const TEMPERATURE: u32 = bits(&[
    attribute::INPUT,
    attribute::TEMPERATURE_MAX,
    attribute::TEMPERATURE_OFFSET,
    attribute::TEMPERATURE_HIGHEST,
    attribute::TEMPERATURE_RESET_HISTORY,
]);
const PLAIN: u32 = bits(&[attribute::INPUT, attribute::HIGHEST, attribute::RESET_HISTORY]);

const fn bits(attributes: &[u16]) -> u32 {
    let (mut bits, mut at) = (0, 0);
    while at < attributes.len() {
        bits |= 1 << attributes[at];
        at += 1;
    }
    bits
}

/// Temperature sensors.
const TEMPERATURES: usize = 2;
/// Clocks that a packet can name.
const PLLS: usize = 32;

/// Measured values, and the card's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sensors {
    /// Thousandths of a degree Celsius.
    pub temperature: u64,
    /// The temperature above which the clocks are throttled, thousandths of a degree Celsius.
    pub max_temperature: u64,
    /// Thousandths of a volt.
    pub voltage: u64,
    /// Thousandths of an ampere.
    pub current: u64,
    /// Thousandths of a watt.
    pub power: u64,
    /// The power above which the clocks are throttled unless the driver sets another, thousandths
    /// of a watt.
    pub max_power: u64,
    /// The clocks' highest frequency unless the driver sets another, hertz.
    pub clock: u64,
    /// Revolutions of the fan in a minute.
    pub fan: u64,
}

impl Default for Sensors {
    fn default() -> Self {
        Self {
            temperature: 42_000,
            max_temperature: 100_000,
            voltage: 12_000,
            current: 8_000,
            power: 96_000,
            max_power: 600_000,
            clock: 1_650_000_000,
            fan: 3_000,
        }
    }
}

/// Measured quantities, each with its highest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Temperature(usize),
    Voltage,
    Current,
    Power,
}

const QUANTITIES: [Quantity; TEMPERATURES + 3] = [
    Quantity::Temperature(0),
    Quantity::Temperature(1),
    Quantity::Voltage,
    Quantity::Current,
    Quantity::Power,
];

/// The sensors, and the driver's settings since the chip was reset.
#[derive(Debug, Default)]
pub(super) struct Environment {
    pub(super) sensors: Sensors,
    max_power: Option<u64>,
    clocks: [Option<u64>; PLLS],
    // Added to each temperature, thousandths of a degree.
    offsets: [i64; TEMPERATURES],
    highest: [i64; QUANTITIES.len()],
    // The fan's drive, and how it is controlled.
    pwm: u64,
    pwm_enable: u64,
    // Throttling that was reported to the driver: for power, for temperature.
    pub(super) reported: [bool; 2],
}

impl Environment {
    /// After a reset of the chip: nothing is set.
    pub(super) fn new(sensors: Sensors) -> Self {
        let mut new = Self {
            sensors,
            ..Self::default()
        };
        QUANTITIES.into_iter().for_each(|quantity| new.forget(quantity));
        new
    }

    fn max_power(&self) -> u64 {
        self.max_power.unwrap_or(self.sensors.max_power)
    }

    fn now(&self, quantity: Quantity) -> i64 {
        let (measured, offset) = match quantity {
            Quantity::Temperature(sensor) => (self.sensors.temperature, self.offsets[sensor]),
            Quantity::Voltage => (self.sensors.voltage, 0),
            Quantity::Current => (self.sensors.current, 0),
            Quantity::Power => (self.sensors.power, 0),
        };
        (measured as i64).saturating_add(offset)
    }

    // The highest value becomes that of now.
    fn forget(&mut self, quantity: Quantity) {
        let now = self.now(quantity);
        *self.highest_mut(quantity) = now;
    }

    fn highest_mut(&mut self, quantity: Quantity) -> &mut i64 {
        let at = QUANTITIES.iter().position(|&other| other == quantity);
        &mut self.highest[at.expect("every quantity is in the table")]
    }

    pub(super) fn measure(&mut self) {
        for quantity in QUANTITIES {
            let now = self.now(quantity);
            let highest = self.highest_mut(quantity);
            *highest = now.max(*highest);
        }
    }

    /// Whether the clocks are throttled: for power, for temperature.
    pub(super) fn throttled(&self) -> [bool; 2] {
        let limit = self.sensors.max_temperature as i64;
        let hot = (0..TEMPERATURES).any(|sensor| self.now(Quantity::Temperature(sensor)) > limit);
        [self.sensors.power > self.max_power(), hot]
    }

    fn clock(&self, pll: u32) -> Option<u64> {
        let set = self.clocks.get(usize::try_from(pll).ok()?)?;
        Some(set.unwrap_or(self.sensors.clock))
    }

    /// Returns the value that a packet requests; `None` if the card has no such sensor, clock or
    /// attribute.
    pub(super) fn get(&mut self, operation: u16, argument: u32) -> Option<u64> {
        let (sensor, attribute) = parts(argument);
        Some(match operation {
            packet::MAX_POWER_GET => self.max_power(),
            packet::FREQUENCY_GET => self.clock(argument)?,
            // guess: a clock that is throttled has half its frequency.
            packet::FREQUENCY_CURR_GET => match self.throttled().contains(&true) {
                true => self.clock(argument)? / 2,
                false => self.clock(argument)?,
            },
            packet::FAN_SPEED_GET if (sensor, attribute) == (0, attribute::INPUT) => self.sensors.fan,
            packet::PWM_GET if sensor == 0 => match attribute {
                attribute::INPUT => self.pwm,
                attribute::PWM_ENABLE => self.pwm_enable,
                _ => return None,
            },
            _ => {
                let (quantity, input, highest, _) = measured(operation, sensor)?;
                match attribute {
                    _ if attribute == input => self.now(quantity) as u64,
                    _ if attribute == highest => *self.highest_mut(quantity) as u64,
                    attribute::TEMPERATURE_MAX if operation == packet::TEMPERATURE_GET => {
                        self.sensors.max_temperature
                    }
                    attribute::TEMPERATURE_OFFSET if operation == packet::TEMPERATURE_GET => {
                        *self.offsets.get(sensor)? as u64
                    }
                    _ => return None,
                }
            }
        })
    }

    /// Sets the value of a packet; `None` as for [`get`](Self::get).
    pub(super) fn set(&mut self, operation: u16, argument: u32, value: u64) -> Option<()> {
        let (sensor, attribute) = parts(argument);
        match operation {
            packet::MAX_POWER_SET => self.max_power = Some(value),
            packet::FREQUENCY_SET => {
                *self.clocks.get_mut(usize::try_from(argument).ok()?)? = Some(value);
            }
            packet::PWM_SET if sensor == 0 => match attribute {
                attribute::INPUT => self.pwm = value,
                attribute::PWM_ENABLE => self.pwm_enable = value,
                _ => return None,
            },
            packet::TEMPERATURE_SET if attribute == attribute::TEMPERATURE_OFFSET => {
                *self.offsets.get_mut(sensor)? = value as i64;
            }
            _ => {
                let (quantity, _, _, reset) = measured(operation, sensor)?;
                if attribute != reset {
                    return None;
                }
                self.forget(quantity);
            }
        }
        self.measure();
        Some(())
    }
}

// Sensor and attribute of a packet.
fn parts(argument: u32) -> (usize, u16) {
    (usize::from(argument as u16), (argument >> 16) as u16)
}

// What an operation reads or sets, and the attributes of its value, its highest value and the
// history's reset.
fn measured(operation: u16, sensor: usize) -> Option<(Quantity, u16, u16, u16)> {
    const TEMPERATURE: [u16; 3] = [
        attribute::INPUT,
        attribute::TEMPERATURE_HIGHEST,
        attribute::TEMPERATURE_RESET_HISTORY,
    ];
    const PLAIN: [u16; 3] = [attribute::INPUT, attribute::HIGHEST, attribute::RESET_HISTORY];
    const POWER: [u16; 3] = [
        attribute::POWER_INPUT,
        attribute::POWER_HIGHEST,
        attribute::POWER_RESET_HISTORY,
    ];
    let (quantity, [input, highest, reset]) = match operation {
        packet::TEMPERATURE_GET | packet::TEMPERATURE_SET if sensor < TEMPERATURES => {
            (Quantity::Temperature(sensor), TEMPERATURE)
        }
        packet::VOLTAGE_GET | packet::VOLTAGE_SET if sensor == 0 => (Quantity::Voltage, PLAIN),
        packet::CURRENT_GET | packet::CURRENT_SET if sensor == 0 => (Quantity::Current, PLAIN),
        packet::POWER_GET | packet::POWER_SET if sensor == 0 => (Quantity::Power, POWER),
        _ => return None,
    };
    Some((quantity, input, highest, reset))
}
