package app

import (
	"strings"
	"testing"
	"time"
)

// A transcript: each letter is a check (p passed, r red, d dead), or a pause of a minute (-); what is believed after it stands below.
func TestVitals(t *testing.T) {
	t.Parallel()
	h := &Health{Failures: 3, Passes: 2}
	names := map[standing]byte{starting: '?', up: 'U', unready: 'R', down: 'D'}
	for checks, want := range map[string]string{
		"ppp":                  "UUU",
		"pddpddd":              "UUUUUUD",
		"d":                    "D",
		"r":                    "R",
		"p-rpp":                "UURRU",
		"p-dddpdpp":            "UUUUDDDDU",
		"p-rddd":               "UURRRD",
		"prpppp":               "URRRRU",               // it fell soon: twice as many
		"p-rpprppp-p":          "UURRURRRRRU",          // and again
		"p-rpprpppprppppppppr": "UURRURRRRURRRRRRRRUR", // four times as many
	} {
		now := time.Unix(1e9, 0)
		var v vitals
		var got strings.Builder
		for _, check := range []byte(checks) {
			switch check {
			case 'p':
				v.heard(passed, "", h, now)
			case 'r':
				v.heard(red, "503", h, now)
			case 'd':
				v.heard(dead, "gone", h, now)
			case '-':
				now = now.Add(time.Minute)
			}
			now = now.Add(time.Second)
			got.WriteByte(names[v.standing])
		}
		if got.String() != want {
			t.Errorf("%s\n%s, not\n%s", checks, &got, want)
		}
	}
}
