package gateway

import (
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// trickle is a client that sends one part after another, each after a pause.
type trickle struct {
	part     int
	pause    time.Duration
	parts    int
	deadline time.Time
}

func (c *trickle) limit(t time.Time) error { c.deadline = t; return nil }

func (c *trickle) Read(p []byte) (int, error) {
	if c.parts == 0 {
		return 0, io.EOF
	}
	if !c.deadline.IsZero() && time.Until(c.deadline) < c.pause {
		time.Sleep(time.Until(c.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(c.pause)
	c.parts--
	return min(c.part, len(p)), nil
}

// TestPatience: a body that is held has to come at a pace, and its sender has only its own pauses to answer for.
func TestPatience(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		client  trickle
		step    int
		working time.Duration // between two reads
		ends    time.Duration // after which it is cut off; 0: it is not
	}{
		"one byte now and then": {trickle{part: 1, pause: 10 * time.Second, parts: 1000}, bufferSize, 0,
			time.Minute},
		"at the pace": {trickle{part: bufferSize, pause: 59 * time.Second, parts: 9},
			bufferSize, 0, 0},
		"in small parts, at the pace": {trickle{part: bufferSize / 4, pause: 14 * time.Second, parts: 40},
			bufferSize, 0, 0},
		"in small parts, too slowly": {trickle{part: bufferSize / 4, pause: 16 * time.Second, parts: 50}, bufferSize,
			0, time.Minute},
		"a slow reader": {trickle{part: bufferSize / 4, pause: time.Second, parts: 30}, bufferSize,
			15 * time.Second, 0},
		"too long in all": {trickle{part: bufferSize, pause: 59 * time.Second, parts: 50}, bufferSize, 0,
			10 * time.Minute},
		"a push may come byte by byte": {trickle{part: 1, pause: 10 * time.Second, parts: 50}, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				p := &patientReader{r: &test.client, setDeadline: test.client.limit, stall: time.Minute,
					step: test.step, end: start.Add(maxStalls * time.Minute)}
				buf := make([]byte, bufferSize)
				var err error
				for err == nil {
					_, err = p.Read(buf)
					time.Sleep(test.working)
				}
				cut := errors.Is(err, os.ErrDeadlineExceeded)
				if took := time.Since(start); cut != (test.ends > 0) || cut && took != test.ends {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}
