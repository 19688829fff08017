package remote_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// A client that has its whole response disconnects at once. The request does not count as cancelled, and the side
// channel is kept for the next request.
func TestClientGoesWithItsAnswer(t *testing.T) {
	t.Parallel()
	for _, inBand := range []bool{false, true} {
		t.Run(fmt.Sprint("inband ", inBand), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{inBand: inBand})
			request := w.pack()
			first := &answer{}
			if _, err := w.ask(context.Background(), "app", request, first); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				ctx, cancel := context.WithCancel(context.Background())
				a := &answer{}
				a.onWrite = func(total int) error {
					if int64(total) == a.length {
						cancel()
					}
					return nil
				}
				outcome, err := w.ask(ctx, "app", request, a)
				if err != nil || int64(a.Len()) != a.length || outcome.Command != protocol.CommandFetch {
					t.Fatalf("%d of %d bytes, %v, the outcome %+v", a.Len(), a.length, err, outcome)
				}
			}
			if opened := w.value("packhorse_channels_opened_total"); !inBand && opened != 1 {
				t.Errorf("%v side channels were opened for requests one after the other", opened)
			}
		})
	}
}
