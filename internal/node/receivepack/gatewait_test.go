package receivepack

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// A removal in repositories that share objects waits for a push that began before, and later pushes do not wait for
// both.
func TestGatesRemoveTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gates
		early, err := g.Enter(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		collections := []*Collection{g.Collect("one"), g.Collect("two")}
		removed := false
		ended := make(chan error)
		go func() {
			ended <- RemoveTogether(t.Context(), collections, func() error {
				removed = true
				return nil
			})
		}()
		synctest.Wait()
		for _, dir := range []string{"one", "two"} {
			release, err := g.Hold(t.Context(), dir)
			if err != nil || removed {
				t.Fatalf("a push to %s while another one runs: %v, removed: %v", dir, err, removed)
			}
			release()
		}
		early.Leave()
		if err := <-ended; err != nil || !removed {
			t.Errorf("after the push: %v, removed: %v", err, removed)
		}
		for _, c := range collections {
			c.End()
		}
	})
}

// A change of refs, and a removal, that waits ends with its context.
func TestGatesCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gates
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		open, err := g.Close(t.Context(), "closed")
		if err != nil {
			t.Fatal(err)
		}
		collection := g.Collect("held")
		release, err := g.Hold(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := g.Hold(ctx, "closed")
			ended <- err
		}()
		go func() {
			ended <- collection.Remove(ctx, func() error { return nil })
		}()
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("after the cancellation: %v", err)
			}
		}
		release()
		open()
		collection.End()
		if len(g.byDir) > 0 {
			t.Errorf("gates are left: %v", g.byDir)
		}
	})
}
