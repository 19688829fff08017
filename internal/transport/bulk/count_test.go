package bulk

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

type counter struct{ n atomic.Int64 }

func (c *counter) Sent(n int64) { c.n.Add(n) }

// TestCountsAsItGoes checks that sent bytes count while the rest waits for a slow peer, and that the sum is right at
// the end. It covers kernel copies and others, from files and from connections.
func TestCountsAsItGoes(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	file, _ := tempFile(t, size)
	for name, through := range map[string]func(to *Conn, src io.Reader) (int64, error){
		"kernel": func(to *Conn, src io.Reader) (int64, error) { return to.ReadFrom(src) },
		"buffer": func(to *Conn, src io.Reader) (int64, error) {
			return io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{src})
		},
	} {
		for _, from := range []string{"file", "connection"} {
			t.Run(name+", "+from, func(t *testing.T) {
				t.Parallel()
				r := newRoad(t, networks[0], NewPump(PumpOptions{}), time.Minute)
				var src io.Reader = &Section{File: file, N: size}
				if from == "connection" {
					src = &Stream{From: r.in, N: size}
					go func() { _, _ = r.node.ReadFrom(&Section{File: file, N: size}) }()
				}
				var c counter
				if !CountTo(src, &c) {
					t.Fatal("CountTo = false, want true")
				}
				done := make(chan error, 1)
				go func() {
					_, err := through(r.out, src)
					done <- err
				}()
				gittest.WaitFor(t, "the pump counts bytes before the reader takes any",
					func() bool { return c.n.Load() > 0 })
				if n := c.n.Load(); n == size {
					t.Errorf("the pump counted all %d bytes before the reader took any", n)
				}
				if _, err := io.CopyN(io.Discard, r.end, size); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil || c.n.Load() != size {
					t.Errorf("%v, %d of %d bytes", err, c.n.Load(), size)
				}
			})
		}
	}
	if CountTo(strings.NewReader("x"), &counter{}) {
		t.Error("CountTo of a string = true, want false")
	}
}
