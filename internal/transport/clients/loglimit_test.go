package clients

import (
	"net/netip"
	"testing"
	"time"
)

// TestLogLimit exceeds the log lines for one address and for all addresses. The others are counted.
func TestLogLimit(t *testing.T) {
	t.Parallel()
	const burst, pause = 8, 15 * time.Second
	now := time.Unix(1000, 0)
	l := NewLogLimit(burst, pause)
	l.now = func() time.Time { return now }
	source := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	take := func(i, times int) (lines, suppressed int) {
		for range times {
			if ok, before := l.Take(source(i)); ok {
				lines++
				suppressed += before
			}
		}
		return lines, suppressed
	}
	if lines, suppressed := take(1, 100); lines != burst || suppressed != 0 {
		t.Errorf("lines = %d, suppressed = %d, want %d and 0", lines, suppressed, burst)
	}
	if lines, suppressed := take(2, 1); lines != 1 || suppressed != 100-burst {
		t.Errorf("another address: lines = %d, suppressed = %d, want 1 and %d", lines, suppressed, 100-burst)
	}
	now = now.Add(pause)
	if lines, suppressed := take(1, 2); lines != 1 || suppressed != 0 {
		t.Errorf("after a pause: lines = %d, suppressed = %d, want 1 and 0", lines, suppressed)
	}
	now = now.Add(time.Hour)
	lines := 0
	for i := range 3 * logSources {
		n, _ := take(i, 1)
		lines += n
	}
	if lines != burst*logShare || len(l.sources) > logSources {
		t.Errorf("many addresses: lines = %d, stored = %d, want %d and at most %d", lines, len(l.sources),
			burst*logShare, logSources)
	}
}
