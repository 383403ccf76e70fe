//! Values that the driver sets by packets to the firmware, and the events that follow.

mod card;

use gaudi_model::pci::Sensors;
use gaudi_spec::gaudi2::firmware::{self, attribute, event, packet};

use card::{DOORBELL, HOST, Rig};

/// A card whose driver takes events, and the number of the next packet.
struct Driver {
    rig: Rig,
    next: u32,
    events: u32,
}

impl Driver {
    fn new() -> Self {
        let mut rig = Rig::new();
        rig.boot();
        rig.queues();
        let mut driver = Self {
            rig,
            next: 0,
            events: 0,
        };
        driver.ask(packet::ENABLE_PCI_ACCESS, DOORBELL, 0);
        driver.rig.write(firmware::GIC_HOST_INTS, 0x22a);
        driver
    }

    fn ask(&mut self, operation: u16, value: u64, argument: u32) -> (u64, u32) {
        self.next += 1;
        self.rig.ask(self.next - 1, operation, value, argument)
    }

    fn get(&mut self, operation: u16, argument: u32) -> u64 {
        let (value, rc) = self.ask(operation, 0, argument);
        assert_eq!(rc, 0, "packet {operation} of {argument:#x}");
        value
    }

    fn set(&mut self, operation: u16, argument: u32, value: u64) {
        assert_eq!(
            self.ask(operation, value, argument).1,
            0,
            "packet {operation} of {argument:#x}"
        );
    }

    /// Events since the last call.
    fn events(&mut self) -> Vec<u16> {
        let sent = self.rig.chip.counters().events as u32;
        let new = self.events..sent;
        self.events = sent;
        new.map(|nth| {
            let word = self.rig.host_word(HOST + 0x4004 + u64::from(nth % 64) * 64);
            (word >> 16 & 0xfff) as u16
        })
        .collect()
    }
}

fn of(sensor: u32, attribute: u16) -> u32 {
    sensor | u32::from(attribute) << 16
}

#[test]
fn values_that_the_driver_sets_read_back() {
    let mut driver = Driver::new();
    assert_eq!(driver.get(packet::MAX_POWER_GET, 0), 600_000);
    driver.set(packet::MAX_POWER_SET, 0, 450_000);
    assert_eq!(driver.get(packet::MAX_POWER_GET, 0), 450_000);
    driver.set(packet::FREQUENCY_SET, 5, 900_000_000);
    for operation in [packet::FREQUENCY_GET, packet::FREQUENCY_CURR_GET] {
        assert_eq!(driver.get(operation, 5), 900_000_000);
        assert_eq!(driver.get(operation, 6), 1_650_000_000, "another clock");
    }
    for (attribute, value) in [(attribute::INPUT, 128), (attribute::PWM_ENABLE, 1)] {
        driver.set(packet::PWM_SET, of(0, attribute), value);
        assert_eq!(driver.get(packet::PWM_GET, of(0, attribute)), value);
    }
    let input = of(1, attribute::INPUT);
    let offset = of(1, attribute::TEMPERATURE_OFFSET);
    driver.set(packet::TEMPERATURE_SET, offset, (-2_000_i64) as u64);
    assert_eq!(driver.get(packet::TEMPERATURE_GET, offset) as i64, -2_000);
    assert_eq!(driver.get(packet::TEMPERATURE_GET, input), 40_000);
    assert_eq!(
        driver.get(packet::TEMPERATURE_GET, of(0, attribute::INPUT)),
        42_000,
        "the other sensor"
    );
    // A reset of the chip clears all values: the driver sets its own again.
    driver.rig.chip.reset();
    driver.rig.boot();
    driver.rig.queues();
    driver.next = 0;
    assert_eq!(driver.get(packet::MAX_POWER_GET, 0), 600_000);
    assert_eq!(driver.get(packet::TEMPERATURE_GET, input), 42_000);
}

#[test]
fn unknown_sensors_and_attributes_are_refused() {
    let mut driver = Driver::new();
    for (operation, argument) in [
        (packet::TEMPERATURE_GET, of(2, attribute::INPUT)),
        (packet::TEMPERATURE_SET, of(2, attribute::TEMPERATURE_OFFSET)),
        (packet::TEMPERATURE_SET, of(0, attribute::INPUT)),
        (packet::VOLTAGE_GET, of(1, attribute::INPUT)),
        (packet::VOLTAGE_GET, of(0, attribute::TEMPERATURE_OFFSET)),
        (packet::PWM_SET, of(0, 2)),
        (packet::PWM_GET, of(1, attribute::INPUT)),
        (packet::FAN_SPEED_GET, of(0, 3)),
        (packet::FREQUENCY_GET, 32),
        (packet::FREQUENCY_SET, u32::MAX),
    ] {
        assert_eq!(
            driver.ask(operation, 1, argument).1,
            packet::RC_INVALID,
            "packet {operation} of {argument:#x}"
        );
    }
}

#[test]
fn highest_values_last_until_history_is_reset() {
    let mut driver = Driver::new();
    let power = of(0, attribute::POWER_HIGHEST);
    let peak = Sensors {
        power: 300_000,
        voltage: 13_000,
        ..Sensors::default()
    };
    driver.rig.chip.set_sensors(peak);
    driver.rig.chip.set_sensors(Sensors::default());
    assert_eq!(
        driver.get(packet::POWER_GET, of(0, attribute::POWER_INPUT)),
        96_000
    );
    assert_eq!(driver.get(packet::POWER_GET, power), 300_000);
    driver.set(packet::POWER_SET, of(0, attribute::POWER_RESET_HISTORY), 1);
    assert_eq!(driver.get(packet::POWER_GET, power), 96_000);
    let voltage = of(0, attribute::HIGHEST);
    assert_eq!(
        driver.get(packet::VOLTAGE_GET, voltage),
        13_000,
        "a history of its own"
    );
    driver.set(packet::VOLTAGE_SET, of(0, attribute::RESET_HISTORY), 1);
    assert_eq!(driver.get(packet::VOLTAGE_GET, voltage), 12_000);
}

#[test]
fn crossed_limits_throttle_clocks_and_send_events() {
    let mut driver = Driver::new();
    assert_eq!(driver.events(), [], "within the limits");
    for _ in 0..2 {
        driver.set(packet::MAX_POWER_SET, 0, 95_999);
        driver.set(packet::MAX_POWER_SET, 0, 90_000);
        assert_eq!(driver.events(), [event::FIX_POWER_ENV_S], "once");
        assert_eq!(driver.get(packet::FREQUENCY_CURR_GET, 0), 825_000_000);
        assert_eq!(
            driver.get(packet::FREQUENCY_GET, 0),
            1_650_000_000,
            "its highest stays"
        );
        driver.set(packet::MAX_POWER_SET, 0, 96_000);
        assert_eq!(driver.events(), [event::FIX_POWER_ENV_E]);
        assert_eq!(driver.get(packet::FREQUENCY_CURR_GET, 0), 1_650_000_000);
    }
    let offset = of(0, attribute::TEMPERATURE_OFFSET);
    driver.set(packet::TEMPERATURE_SET, offset, 58_000);
    assert_eq!(driver.events(), [], "at the limit");
    driver.set(packet::TEMPERATURE_SET, offset, 58_001);
    driver.set(packet::MAX_POWER_SET, 0, 1);
    driver.set(packet::TEMPERATURE_SET, offset, 0);
    assert_eq!(
        driver.events(),
        [
            event::FIX_THERMAL_ENV_S,
            event::FIX_POWER_ENV_S,
            event::FIX_THERMAL_ENV_E
        ]
    );
    assert_eq!(
        driver.get(packet::FREQUENCY_CURR_GET, 0),
        825_000_000,
        "still for the power"
    );
    let cool = Sensors {
        power: 1,
        ..Sensors::default()
    };
    driver.rig.chip.set_sensors(cool);
    assert_eq!(driver.events(), [event::FIX_POWER_ENV_E]);
}

#[test]
fn throttling_events_wait_for_the_driver() {
    let mut rig = Rig::new();
    rig.boot();
    rig.queues();
    let hot = Sensors {
        temperature: 120_000,
        ..Sensors::default()
    };
    rig.chip.set_sensors(hot);
    assert_eq!(rig.chip.counters().events, 0, "the driver takes none yet");
    rig.write(firmware::GIC_HOST_INTS, 0x22a);
    assert_eq!(
        rig.host_word(HOST + 0x4004),
        firmware::event_word(event::FIX_THERMAL_ENV_S, 1)
    );
}

#[test]
fn events_fill_their_queue_round_and_round() {
    let mut driver = Driver::new();
    // More than twice the queue's 64 entries.
    for turn in 0..70u32 {
        driver.set(packet::MAX_POWER_SET, 0, 1);
        driver.set(packet::MAX_POWER_SET, 0, 600_000);
        for (nth, event) in (2 * turn..).zip([event::FIX_POWER_ENV_S, event::FIX_POWER_ENV_E]) {
            assert_eq!(
                driver.rig.host_word(HOST + 0x4004 + u64::from(nth % 64) * 64),
                firmware::event_word(event, nth as u16 + 1),
                "event {nth}"
            );
        }
    }
}
