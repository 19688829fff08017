package bulk

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestTally(t *testing.T) {
	t.Parallel()
	var tally Tally
	tally.Add(3)
	if err := tally.Check(0); err != nil {
		t.Errorf("an answer of no announced length: %v", err)
	}
	tally.Announce(10)
	if err := tally.Check(0); err == nil {
		t.Error("an answer of 3 bytes instead of the announced 10: got no error, want one")
	}
	if err := tally.Check(7); err != nil {
		t.Errorf("an answer that has the announced length once all is sent: %v", err)
	}
	tally.AddFrom(&Section{kernel: 5}, 7)
	if err := tally.Check(0); err != nil {
		t.Error(err)
	}
	tally.AddFrom(strings.NewReader("ab"), 2)
	if err := tally.Check(0); err == nil {
		t.Error("an answer of 12 bytes instead of the announced 10: got no error, want one")
	}
	tally.Retract()
	if err := tally.Check(0); err != nil {
		t.Errorf("what was announced was taken back: %v", err)
	}
	registry := prometheus.NewRegistry()
	NewPump(PumpOptions{Registerer: registry}).Count(&tally)
	found, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"kernel": 5, "user": 7}
	for _, family := range found {
		if family.GetName() != "packhorse_copy_bytes_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if path := m.GetLabel()[0].GetValue(); m.GetCounter().GetValue() != want[path] {
				t.Errorf("%v bytes went by %s, want %v", m.GetCounter().GetValue(), path, want[path])
			}
			delete(want, m.GetLabel()[0].GetValue())
		}
	}
	if len(want) > 0 {
		t.Errorf("not counted: %v", want)
	}
}
