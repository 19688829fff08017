package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	t.Parallel()
	const combined = `10.0.0.1 - joe [22/Nov/2026:04:05:06 +0000] "GET /a/17?x=1 HTTP/1.1" 200 512 "https://x/ 1.5" "curl/8 \"2\"" `
	for _, c := range []struct {
		what string
		r    reading
		line string
		want string
	}{
		{"a page of ours", reading{format: Packhorse},
			`{"time":"2026-11-22T04:05:06.5Z","msg":"request","operation":"page","result":"ok","ms":1.25,"status":200,"method":"GET","path":"/-/blob/team/app.git/0123/x"}`,
			"GET /-/blob/{repo}/{ref} answered 1250000 step 10000"},
		{"a clone of ours", reading{format: Packhorse},
			`{"msg":"request","operation":"fetch","result":"ok","ms":7,"transport":"http","status":200,"haves":0,"pack":"hit"}`,
			"POST /{repo}/git-upload-pack answered 7000000 step 1000000"},
		{"by operation", reading{format: Packhorse, operations: true, exact: true},
			`{"msg":"request","operation":"fetch","result":"ok","ms":7,"status":200,"haves":0,"pack":"hit"}`,
			"clone answered 7000000 step 1000000"},
		{"a fetch", reading{format: Packhorse, operations: true, exact: true},
			`{"msg":"request","operation":"fetch","result":"ok","ms":7,"status":200,"haves":9,"pack":"hit"}`,
			"fetch answered 7000000 step 1000000"},
		{"without a pack", reading{format: Packhorse, operations: true, exact: true},
			`{"msg":"request","operation":"fetch","result":"ok","ms":7,"status":200,"haves":9}`,
			"negotiate answered 7000000 step 1000000"},
		{"where the other log has paths", reading{format: Packhorse, operations: true},
			`{"msg":"request","operation":"ls_refs","result":"ok","ms":7,"status":200}`,
			"upload-pack answered 7000000 step 1000000"},
		{"over SSH", reading{format: Packhorse},
			`{"msg":"request","operation":"push","result":"internal","ms":7,"transport":"ssh"}`,
			"SSH /{repo}/git-receive-pack failed 7000000 step 1000000"},
		{"a client that left", reading{format: Packhorse},
			`{"msg":"request","operation":"fetch","result":"cancelled","ms":7,"status":200}`,
			"POST /{repo}/git-upload-pack gone 7000000 step 1000000"},
		{"another line of ours", reading{format: Packhorse}, `{"msg":"listening","address":"x"}`,
			"error: a line about something else"},
		{"escapes", reading{format: Packhorse},
			`{"msg":"request","operation":"other","result":"ok","ms":7,"status":404,"method":"GET","path":"/a\u001b[2J/\u0062"}`,
			"GET /a\x1b[2J/b refused 7000000 step 1000000"},
		{"nested values", reading{format: Packhorse},
			`{"msg":"request","failed_nodes":["a"],"x":{"ms":1},"operation":"push","result":"ok","ms":7,"status":200}`,
			"POST /{repo}/git-receive-pack answered 7000000 step 1000000"},

		{"nginx", reading{format: Nginx},
			`{"time_iso8601":"2026-11-22T04:05:06+00:00","request_method":"POST","request_uri":"/team/app.git/git-upload-pack","status":"200","request_time":"0.123"}`,
			"POST /{repo}/git-upload-pack answered 123000000 step 1000000"},
		{"numbers, and the request line", reading{format: Nginx},
			`{"msec":1700000000.123,"request":"GET /x?y HTTP/2.0","status":503,"request_time":1.5}`,
			"GET /x failed 1500000000 step 100000000"},
		{"keys that mean the same", reading{format: Nginx},
			`{"path":"/c","method":"PUT","uri":"/b","request_uri":"/a\u0061","request_method":"GET","status":200,"request_time":"0.1"}`, "GET /aa answered 100000000 step 100000000"},
		{"upstream's time, if there is no other", reading{format: Nginx},
			`{"request":"GET /x HTTP/2.0","status":200,"upstream_response_time":"0.010, - : 0.020"}`,
			"GET /x answered 30000000 step 1000000"},
		{"an upgrade", reading{format: Nginx}, `{"request":"GET /x HTTP/1.1","status":101,"request_time":900.5}`,
			"error: a line about something else"},
		{"no request", reading{format: Nginx}, `{"request":"","status":"400","request_time":"0.000"}`,
			"(no request) refused 0 step 1000000"},
		{"no time", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"200"}`, "error: no duration"},
		{"a field of one's own", reading{format: Nginx, duration: "took_us"},
			`{"request":"GET / HTTP/1.1","status":"200","took_us":"250","request_time":"9"}`, "GET / answered 250000 step 1000"},

		{"Workhorse", reading{format: Workhorse},
			`{"correlation_id":"1","duration_ms":42,"host":"x","level":"info","method":"GET","msg":"access","proto":"HTTP/1.1","route":"^/api","status":200,"system":"http","time":"2026-11-22T04:05:06Z","ttfb_ms":40,"uri":"/api/v4/projects/team%2Fapp/issues/12?private_token=[FILTERED]","written_bytes":1}`,
			"GET /api/v4/projects/{repo}/issues/{id} answered 42000000 step 1000000"},
		{"another line of Workhorse's", reading{format: Workhorse}, `{"level":"info","msg":"starting","time":"x"}`,
			"error: a line about something else"},

		{"combined with $request_time", reading{format: Common}, combined + `0.250`,
			"GET /a/{id} answered 250000000 step 1000000"},
		{"with %D", reading{format: Common}, combined + `250`, "GET /a/{id} answered 250000 step 1000"},
		{"with a name and a unit", reading{format: Common}, combined + `rt=25ms`,
			"GET /a/{id} answered 25000000 step 1000000"},
		{"in quotes", reading{format: Common}, combined + `"0.250"`, "GET /a/{id} answered 250000000 step 1000000"},
		{"with a pool", reading{format: Common, split: "pool"}, combined + `0.250 pool=new`,
			"GET /a/{id} answered 250000000 step 1000000 pool new"},
		{"by name", reading{format: Common, duration: "urt"}, combined + `rt=9 urt=0.250 x=1`,
			"GET /a/{id} answered 250000000 step 1000000"},
		{"the time of all among those of the application", reading{format: Common}, combined +
			`rt=0.250 uct="0.001" uht="0.010" urt="0.011"`, "GET /a/{id} answered 250000000 step 1000000"},
		{"a number among named ones", reading{format: Common}, combined + `0.250 urt=0.011`,
			"GET /a/{id} answered 250000000 step 1000000"},
		{"and what is none after it", reading{format: Common}, combined + `0.250 "-" -`,
			"GET /a/{id} answered 250000000 step 1000000"},
		{"that is not known", reading{format: Common}, combined + `rt=- urt="0.011"`, "error: no duration"},
		{"common", reading{format: Common}, `::1 - - [22/Nov/2026:04:05:06 +0000] "GET / HTTP/1.0" 499 - 0.001`,
			"GET / gone 1000000 step 1000000"},
		{"without a duration", reading{format: Common}, strings.TrimSpace(combined), "error: no duration"},
		{"an agent that is a number", reading{format: Common},
			`::1 - - [22/Nov/2026:04:05:06 +0000] "GET / HTTP/1.0" 200 5 "-" "0.5"`, "error: no duration"},
		{"without a request", reading{format: Common}, `::1 - - [22/Nov/2026:04:05:06 +0000] "-" 408 0 "-" "-" 60.0`,
			"(no request) refused 60000000000 step 100000000"},

		{"negative", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"200","request_time":-0.5}`,
			"error: a negative duration"},
		{"not a number", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"200","request_time":"NaN"}`,
			"error: the duration is not a number"},
		{"infinite", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"200","request_time":"+Inf"}`,
			"error: a duration of more than 30 days"},
		{"huge", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"200","request_time":1e400}`,
			"error: a duration of more than 30 days"},
		{"many digits", reading{format: Nginx},
			`{"request":"GET / HTTP/1.1","status":"200","request_time":99999999999999999999999}`,
			"error: a duration of more than 30 days"},
		{"a bad status", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"2e2","request_time":1}`,
			"error: no status"},
		{"NUL", reading{format: Nginx}, "{\"request\":\"GET /\x00 HTTP/1.1\",\"status\":\"200\",\"request_time\":1}",
			"error: no JSON object"},
		{"not UTF-8", reading{format: Nginx}, "{\"request\":\"GET /\xff HTTP/1.1\",\"status\":\"200\",\"request_time\":1}",
			"GET /\ufffd answered 1000000000 step 1000000000"},
		{"cut", reading{format: Nginx}, `{"request":"GET / HTTP/1.1","status":"200","request_time":1`,
			"error: no JSON object"},
		{"an array", reading{format: Nginx}, `[1]`, "error: no JSON object"},
		{"null", reading{format: Nginx}, `null`, "error: no JSON object"},
	} {
		c.r.settle()
		p := newParser(&c.r)
		err := p.parse([]byte(c.line))
		var name []byte
		if err == nil {
			name, err = p.appendName(nil)
		}
		got := fmt.Sprintf("%s %s %d step %d", name, []string{"answered", "refused", "failed", "gone"}[p.class], p.ns, p.step)
		if len(p.got[fieldPool]) > 0 {
			got += " pool " + string(p.got[fieldPool])
		}
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s\nwant %s", c.what, got, c.want)
		}
		if f := newDetector().formatOf([]byte(c.line)); err == nil && c.r.duration == "" && f != c.r.format {
			t.Errorf("%s is taken for %q, not %s", c.what, f, c.r.format)
		}
	}
}

// The documentation has every key.
func TestKeysAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "compare.md"))
	if err != nil {
		t.Fatal(err)
	}
	for format, l := range layouts {
		_, row, _ := strings.Cut(string(text), fmt.Sprintf("\n| `%s` |", format))
		row, _, _ = strings.Cut(row, "\n")
		for _, keys := range l.keys {
			for _, k := range keys {
				if !strings.Contains(row, "`"+k+"`") {
					t.Errorf("%s: %s is not there", format, k)
				}
			}
		}
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	for when, want := range map[string]error{
		"2026-11-22T05:05:06+01:00": nil, "22/Nov/2026:04:05:06 +0000": nil, "1795320306.5": nil,
		"2026-11-22T04:05:05Z": errOutside, "2026-11-22T04:05:07Z": errOutside, "": errTime, "yesterday": errTime,
		"99999999999": errTime,
	} {
		r := &reading{format: Nginx, since: mustTime(t, "2026-11-22T04:05:06Z"), until: mustTime(t, "2026-11-22T04:05:07Z")}
		r.settle()
		line := fmt.Sprintf(`{"time":%q,"request":"GET / HTTP/1.1","status":200,"request_time":1}`, when)
		if err := newParser(r).parse([]byte(line)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", when, err, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	var patterns []Pattern
	for _, text := range []string{"/users/*/avatar", "/static/**"} {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		patterns = append(patterns, p)
	}
	for path, want := range map[string]string{
		"/":                                    "/",
		"":                                     "/",
		"/a/b?token=x":                         "/a/b",
		"/a/17/b":                              "/a/{id}/b",
		"/v4/x":                                "/v4/x",
		"http://host/a/1":                      "/a/{id}",
		"http://host":                          "/",
		"/team/app.git/info/refs?service=":     "/{repo}/info/refs",
		"/team/app/git-upload-pack":            "/{repo}/git-upload-pack",
		"/app/git-receive-pack":                "/{repo}/git-receive-pack",
		"/team/app.git/info/lfs/objects/batch": "/{repo}/info/lfs/objects/batch",
		"/team/app.git":                        "/{repo}",
		"/team/app.git/objects/ab/0123456789abcdef0123456789abcdef012345": "/{repo}/objects/ab/{hash}",
		"/objects/list": "/objects/list",
		"/team/sub/app/-/merge_requests/17/diffs":              "/{repo}/-/merge_requests/{id}/diffs",
		"/team/app/-/blob/main/a/b/c.go":                       "/{repo}/-/blob/{ref}",
		"/-/blob/team/app/0123abc/x/y":                         "/-/blob/{repo}/{ref}",
		"/-/api/v1/search":                                     "/-/api/v1/search",
		"/api/v4/projects/team%2Fapp/repository":               "/api/v4/projects/{repo}/repository",
		"/x/123e4567-e89b-12d3-a456-426614174000":              "/x/{uuid}",
		"/assets/application-0a1b2c3d4e5f.js":                  "/assets/application-{hash}.js",
		"/reports/2026-11-22.csv":                              "/reports/{id}-11-22.csv",
		"/dl/aGVsbG8gd29ybGQgMTIzNDU2":                         "/dl/{token}",
		"/feedbed/facade":                                      "/feedbed/facade",
		"/users/joe/avatar":                                    "/users/*/avatar",
		"/users/joe/avatar/x":                                  "/users/joe/avatar/x",
		"/users//avatar":                                       "/users//avatar",
		"/static/a/b/c":                                        "/static/**",
		"/1/2/3/4/5/6/7/8/9/10/11/12":                          "/{id}" + strings.Repeat("/{id}", 9) + "/{...}",
		"/" + strings.Repeat("x", 5000):                        "/{token}",
		"/" + strings.Repeat(strings.Repeat("ab-", 15)+"/", 9): "",
	} {
		got := string(appendRoute(nil, []byte(path), patterns))
		if got != want && want != "" || len(got) > maxRouteBytes {
			t.Errorf("%.80s: %s, want %s", path, got, want)
		}
	}
	for _, bad := range []string{"users", "/a/**/b", "/" + strings.Repeat("x", 300)} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("%.40s is taken for a pattern", bad)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"b","c":-1.5e3,"d":null,"a":[1,{"x":2}]}`, `{"a":"\u00e9\n"}`, `{"a":01}`,
		`{"a":1}x`, "{\"a\":\"\xff\"}", `{"a":tru}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got := map[string]string{}
		err := scanObject(line, func(key, value []byte, kind fieldKind) {
			if delete(got, string(key)); kind < kindOther {
				got[string(key)] = string(value)
			}
		})
		var all map[string]any
		d := json.NewDecoder(strings.NewReader(string(line)))
		d.UseNumber()
		bad := d.Decode(&all) != nil || all == nil || json.Valid(line) != true
		if bad != (err != nil) {
			t.Fatalf("%q: %v; encoding/json thinks otherwise", line, err)
		}
		if bad {
			return
		}
		want := map[string]string{}
		for k, v := range all {
			switch v := v.(type) {
			case string:
				want[k] = v
			case json.Number:
				want[k] = string(v)
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%q: %q, want %q", line, got, want)
		}
	})
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{
		`{"msg":"request","operation":"fetch","result":"ok","ms":7,"status":200,"path":"/a/b"}`,
		`{"request":"GET /x HTTP/1.1","status":"200","request_time":"0.1, 0.2"}`,
		`::1 - - [22/Nov/2026:04:05:06 +0000] "GET /a\"b HTTP/1.0" 499 - "x" "y" rt=0.001ms pool=a`,
		`{"msg":"request","ms":0,"status":0}`,
		`{"msg":"access","duration_ms":1,"uri":"/a.git/info/refs?x","method":"GET","status":200}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, format := range Formats {
			for _, operations := range []bool{false, true} {
				r := &reading{format: format, operations: operations, split: "pool"}
				r.settle()
				p := newParser(r)
				if p.parse(line) != nil {
					continue
				}
				if p.ns < 0 || p.ns > maxNanos || p.step < 1 {
					t.Fatalf("%q: %d ns in steps of %d", line, p.ns, p.step)
				}
				if name, err := p.appendName(nil); err == nil && (len(name) == 0 || len(name) > maxRouteBytes+20) {
					t.Fatalf("%q: the route %q", line, name)
				}
			}
		}
	})
}
