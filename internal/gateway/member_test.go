package gateway

import "testing"

// A replica that is gone is never used again, and goes once.
func TestMemberUse(t *testing.T) {
	t.Parallel()
	gone := 0
	m := &member{Replica: &Replica{Gone: func() { gone++ }}, memberUse: &memberUse{}}
	m.users.Store(1) // the routes
	if !m.hold() {
		t.Fatal("a replica that a route names cannot be used")
	}
	m.release()
	if gone != 0 || !m.hold() {
		t.Fatal("gone with a request")
	}
	m.release() // the routes
	if gone != 0 {
		t.Fatal("gone while it is used")
	}
	m.release()
	if gone != 1 || m.hold() {
		t.Fatal("used after it went")
	}
}
