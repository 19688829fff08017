package ipc

import (
	"reflect"
	"testing"
)

func TestRequestsAndEndsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	for _, q := range []Request{{}, {Query: "foo \x00\xff", Format: 3, Limit: 1 << 20, Timeout: 20_000, Limited: true}, {Loaded: true}, {Format: -1}} {
		if got, err := ParseRequest(q.Append(nil)); err != nil || got != q {
			t.Errorf("%+v was read as %+v, %v", q, got, err)
		}
	}
	for _, e := range []End{
		{}, {Error: "bad", Kind: 7},
		{Limited: true, TimedOut: true, Crashed: true, Results: 10, Matches: 300, Searched: 3, Took: 1 << 40,
			Repositories: []Found{{ID: 1, Shards: 300, Commit: "abc", Branch: "main"}, {ID: 1<<32 - 1}}},
	} {
		if got, err := ParseEnd(e.Append(nil)); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%+v was read as %+v, %v", e, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add((&Request{Query: "q", Limit: 10, Limited: true}).Append(nil))
	f.Add((&End{Error: "e", Results: 1, Repositories: []Found{{ID: 5, Commit: "c", Branch: "b"}}}).Append(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := ParseRequest(b); err == nil {
			if again, err := ParseRequest(q.Append(nil)); err != nil || again != q {
				t.Errorf("%+v, then %+v, %v", q, again, err)
			}
		}
		if e, err := ParseEnd(b); err == nil {
			if again, err := ParseEnd(e.Append(nil)); err != nil || !reflect.DeepEqual(again, e) {
				t.Errorf("%+v, then %+v, %v", e, again, err)
			}
		}
	})
}
