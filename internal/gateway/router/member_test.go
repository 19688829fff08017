package router

import "testing"

// A replica that is gone is never used again, and goes once.
func TestUseCount(t *testing.T) {
	t.Parallel()
	gone := 0
	m := &member{Replica: &Replica{Gone: func() { gone++ }}, useCount: &useCount{}}
	m.users.Store(1) // the routes
	if !m.acquire() {
		t.Fatal("a replica that a route names cannot be used")
	}
	m.release()
	if gone != 0 || !m.acquire() {
		t.Fatal("gone with a request")
	}
	m.release() // the routes
	if gone != 0 {
		t.Fatal("gone while it is used")
	}
	m.release()
	if gone != 1 || m.acquire() {
		t.Fatal("used after it went")
	}
}
