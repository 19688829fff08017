package browse

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Requests for one page share it. One whose client has gone leaves it to another one, and one that fails holds up
// others once.
func TestShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		gone, cancel := context.WithCancel(t.Context())
		_, lost, _ := c.share(gone, "key")
		makers := make(chan func(*fragment), 3)
		shared := make(chan *fragment, 3)
		for range 3 {
			go func() {
				f, made, err := c.share(t.Context(), "key")
				if err != nil {
					t.Error(err)
				}
				if made != nil {
					makers <- made
				} else {
					shared <- f
				}
			}()
		}
		leaving, leave := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, _, err := c.share(leaving, "key")
			failed <- err
		}()
		synctest.Wait()
		leave()
		if err := <-failed; !fault.Is(err, fault.Cancelled) || len(makers)+len(shared) != 0 {
			t.Fatalf("a client that left got %v, want Cancelled; others: %d and %d, want none", err, len(makers), len(shared))
		}
		cancel()
		lost(nil)
		synctest.Wait()
		if len(makers) != 1 || len(shared) != 0 {
			t.Fatalf("after a client has gone, %d requests make the page and %d have it; want 1 and 0", len(makers), len(shared))
		}
		want := &fragment{noStore: true}
		(<-makers)(want)
		for range 2 {
			if f := <-shared; f != want {
				t.Errorf("a request got %v, want the page that another one has made", f)
			}
		}
		_, fails, _ := c.share(t.Context(), "key")
		for range 2 {
			go func() {
				_, made, _ := c.share(t.Context(), "key")
				makers <- made
			}()
		}
		synctest.Wait()
		fails(nil)
		for range 2 {
			(<-makers)(nil)
		}
		if len(c.making) != 0 {
			t.Errorf("%d pages are being made, want none", len(c.making))
		}
	})
}
