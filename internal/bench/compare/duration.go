package compare

import (
	"bytes"
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Unit is the unit of a log's durations in nanoseconds.
type Unit int64

// The units.
const (
	Auto         Unit = 0
	Nanoseconds  Unit = 1
	Microseconds Unit = 1e3
	Milliseconds Unit = 1e6
	Seconds      Unit = 1e9
)

// ParseUnit parses "auto", "s", "ms", "us" or "ns".
func ParseUnit(text string) (Unit, error) {
	switch text {
	case "auto":
		return Auto, nil
	case "s":
		return Seconds, nil
	case "ms":
		return Milliseconds, nil
	case "us", "µs":
		return Microseconds, nil
	case "ns":
		return Nanoseconds, nil
	}
	return Auto, errors.New("want s, ms, us, ns or auto")
}

var (
	errNoDuration = errors.New("no duration")
	errDuration   = errors.New("the duration is not a number")
	errNegative   = errors.New("a negative duration")
	errTooLong    = errors.New("a duration of more than 30 days")
)

// parseDuration parses a decimal number of a unit and returns nanoseconds. step is the value of its last digit in
// nanoseconds, such as 1e6 for a log with milliseconds.
func parseDuration(text []byte, unit Unit) (ns, step int64, err error) {
	if len(text) == 0 || len(text) == 1 && text[0] == '-' {
		return 0, 0, errNoDuration
	}
	var whole int64
	i := 0
	for i < len(text) && i < 15 && text[i] >= '0' && text[i] <= '9' {
		whole = whole*10 + int64(text[i]-'0')
		i++
	}
	step = int64(unit)
	fraction := int64(0)
	if i > 0 && i < len(text) && text[i] == '.' {
		from := i + 1
		for i++; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
			if step >= 10 {
				step /= 10
				fraction += int64(text[i]-'0') * step
			}
		}
		if i == from {
			return 0, 0, errDuration
		}
	}
	if i < len(text) || i == 0 {
		return parseRareDuration(text, unit)
	}
	if whole > maxNanos/int64(unit) || whole*int64(unit)+fraction > maxNanos {
		return 0, 0, errTooLong
	}
	return whole*int64(unit) + fraction, step, nil
}

// parseRareDuration parses numbers with a sign, an exponent or very many digits.
func parseRareDuration(text []byte, unit Unit) (ns, step int64, err error) {
	x, err := strconv.ParseFloat(string(text), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), math.IsNaN(x):
		return 0, 0, errDuration
	case x < 0:
		return 0, 0, errNegative
	case x > float64(maxNanos)/float64(unit):
		return 0, 0, errTooLong
	}
	return int64(math.Round(x * float64(unit))), 1, nil
}

// steps counts durations by their resolution. In a converted log the digits show a finer resolution than the clock had.
// A step is a power of ten of nanoseconds, and its bit length is the index.
type steps [31]int

// add counts a duration whose last digit is worth a step. A duration of zero is not counted.
func (s *steps) add(ns, step int64) {
	switch {
	case ns == 0:
		return
	case ns%int64(Milliseconds) == 0:
		step = max(step, int64(Milliseconds))
	case ns%int64(Microseconds) == 0:
		step = max(step, int64(Microseconds))
	}
	s[bits.Len64(uint64(step))]++
}

func (s *steps) merge(o *steps) {
	for i, n := range o {
		s[i] += n
	}
}

// usual returns the coarsest step of which most durations are whole multiples. A few odd lines do not make the clock
// finer.
func (s *steps) usual() int64 {
	all, finer := 0, 0
	for _, n := range s {
		all += n
	}
	for step := int64(1); step < int64(Seconds); step *= 10 {
		if finer += s[bits.Len64(uint64(step))]; 2*finer > all {
			return step
		}
	}
	if all == 0 {
		return int64(Milliseconds)
	}
	return int64(Seconds)
}

// measure parses the duration.
func (p *parser) measure() error {
	if p.got[fieldTook] == nil {
		p.got[fieldTook] = p.got[fieldUpstream]
	}
	unit := p.unit
	if unit == Auto { // only for the Common Log Format
		unit = Microseconds // Apache's %D
		if bytes.IndexByte(p.got[fieldTook], '.') >= 0 {
			unit = Seconds // nginx's $request_time
		}
	}
	if p.format == Nginx && bytes.ContainsAny(p.got[fieldTook], ",:") { // one for each upstream server
		return p.sum(unit)
	}
	if p.format == Common { // 0.012s, rt=0.012
		for _, u := range []struct {
			text string
			unit Unit
		}{{"ms", Milliseconds}, {"us", Microseconds}, {"s", Seconds}} {
			if rest, ok := bytes.CutSuffix(p.got[fieldTook], []byte(u.text)); ok {
				p.got[fieldTook], unit = rest, u.unit
				break
			}
		}
	}
	var err error
	p.ns, p.step, err = parseDuration(p.got[fieldTook], unit)
	return err
}

// settle sets the unit of durations: that of the field's name, or the one of the format.
func (r *reading) settle() {
	if r.unit != Auto {
		return
	}
	switch {
	case strings.HasSuffix(r.duration, "_ms"):
		r.unit = Milliseconds
	case strings.HasSuffix(r.duration, "_us"):
		r.unit = Microseconds
	case strings.HasSuffix(r.duration, "_ns"):
		r.unit = Nanoseconds
	case strings.HasSuffix(r.duration, "_s"):
		r.unit = Seconds
	default:
		r.unit = layouts[r.format].unit
	}
}

// sum adds up nginx's $upstream_response_time: "0.010, 0.020 : -".
func (p *parser) sum(unit Unit) error {
	took := p.got[fieldTook]
	for len(took) > 0 {
		n := bytes.IndexAny(took, ",:")
		if n < 0 {
			n = len(took)
		}
		part := bytes.TrimSpace(took[:n])
		if took = took[min(n+1, len(took)):]; string(part) == "-" {
			continue
		}
		ns, step, err := parseDuration(part, unit)
		if err != nil {
			return err
		}
		if p.ns += ns; p.ns > maxNanos {
			return errTooLong
		}
		p.step = step
	}
	if p.step == 0 {
		return errNoDuration
	}
	return nil
}
