import { describe, expect, it } from "vitest";

import { ago, count, duration, exact, human, moment, rate, short, size, until } from "../src/format";

const plain = (text: string): string => text.replaceAll(/[\u00a0\u202f]/g, " ");

describe("numbers", () => {
  it.each([
    [0, "0"],
    [7.25, "7.3"],
    [0.2, "0.2"],
    [0.001, "<0.01"],
    [999, "999"],
    [999.6, "1 k"],
    [1234, "1.23 k"],
    [45_600_000, "45.6 M"],
    [2_000_000_000_000, "2 tn"],
    [-1500, "−1.5 k"],
    [null, "–"],
  ])("counts %s as %s", (value, text) => expect(plain(count(value))).toBe(text));

  it.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1 KiB"],
    [676 * 2 ** 20, "676 MiB"],
    [1.5 * 2 ** 40, "1.5 TiB"],
    [undefined, "–"],
  ])("sizes %s as %s", (value, text) => expect(plain(size(value))).toBe(text));

  it("keeps all digits when asked to, and says rates", () => {
    expect(plain(exact(10_000))).toBe("10 000");
    expect(plain(rate(36_600))).toBe("36.6 k/s");
    expect(rate(null)).toBe("–");
  });
});

describe("times", () => {
  it.each([
    [0, "0 s"],
    [0.25, "250 ms"],
    [6.4, "6.4 s"],
    [59.7, "1 min"],
    [200, "3 min 20 s"],
    [1800, "30 min"],
    [18_600, "5 h 10 min"],
    [187_200, "2 d 4 h"],
    [null, "–"],
  ])("lasts %s s: %s", (value, text) => expect(plain(duration(value))).toBe(text));

  it("has room for one unit only", () => {
    expect(plain(short(58_680))).toBe("16.3 h");
    expect(plain(short(3599))).toBe("59 min");
    expect(plain(short(400_000))).toBe("4 d");
  });

  it("tells moments from now, whichever side they are on", () => {
    const now = Date.parse("2026-03-01T12:00:00Z");
    expect(plain(ago("2026-03-01T11:57:00Z", now))).toBe("3 min ago");
    expect(ago("2026-03-01T12:00:09Z", now)).toBe("just now");
    expect(ago("nonsense", now)).toBe("–");
    expect(plain(until("2026-03-01T12:01:35Z", now))).toBe("in 1 min");
    expect(until("2026-03-01T11:00:00Z", now)).toBe("now");
    expect(moment(null)).toBe("–");
  });

  it("reads long spans and sizes in sentences, and leaves other numbers alone", () => {
    expect(plain(human("oldest generation pending for 7273 s (limit 300 s)"))).toBe(
      "oldest generation pending for 2 h 1 min (limit 5 min)",
    );
    expect(plain(human("2147483648 bytes pending in 4096 regions"))).toBe("2 GiB pending in 4096 regions");
  });
});
