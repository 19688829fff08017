package compare

import (
	"strings"
	"time"
)

// within checks whether the line is in the window of time.
func (p *parser) within() error {
	if p.since.IsZero() && p.until.IsZero() {
		return nil
	}
	at, err := parseTime(p.got[fieldTime])
	if err != nil {
		return err
	}
	if !p.since.IsZero() && at.Before(p.since) || !p.until.IsZero() && !at.Before(p.until) {
		return errOutside
	}
	return nil
}

const commonTime = "02/Jan/2006:15:04:05 -0700"

// parseTime parses the times of logs: RFC 3339, seconds since 1970, or those of the Common Log Format.
func parseTime(text []byte) (time.Time, error) {
	s := string(text)
	if len(s) > 64 {
		return time.Time{}, errTime
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if t, err := time.Parse(commonTime, s); err == nil {
		return t, nil
	}
	if ns, err := unixTime(s); err == nil {
		return time.Unix(0, ns).UTC(), nil
	}
	return time.Time{}, errTime
}

func unixTime(s string) (int64, error) {
	var seconds, nanos int64
	whole, fraction, _ := strings.Cut(s, ".")
	if len(whole) == 0 || len(whole) > 10 || len(fraction) > 9 {
		return 0, errTime
	}
	for _, c := range whole {
		if c < '0' || c > '9' {
			return 0, errTime
		}
		seconds = seconds*10 + int64(c-'0')
	}
	if seconds > 9e9 {
		return 0, errTime
	}
	for i := range 9 {
		nanos *= 10
		if i < len(fraction) {
			if fraction[i] < '0' || fraction[i] > '9' {
				return 0, errTime
			}
			nanos += int64(fraction[i] - '0')
		}
	}
	return seconds*1e9 + nanos, nil
}
