package rest

import (
	"bytes"
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	paths := OpenAPI()["paths"].(Object)
	for _, r := range Routes {
		if fields := r.procedure().Input().Fields(); fields.ByName("repository") == nil && !r.ForAll {
			t.Errorf("%s %s: the request has no repository", r.Method, r.Path)
		}
		path := r.fullPath()
		operations, _ := paths[path].(Object)
		if operations[strings.ToLower(r.Method)] == nil || r.Summary == "" {
			t.Errorf("%s %s is not in the OpenAPI document", r.Method, path)
		}
		if hasActor := r.procedure().Input().Fields().ByName("actor") != nil; hasActor != (r.Needs == auth.Write) {
			t.Errorf("%s %s needs %v, and the request has an actor: %v", r.Method, r.Path, r.Needs, hasActor)
		}
	}
}

// Each reference of the document has a target, and each parameter is declared.
func TestOpenAPIIsComplete(t *testing.T) {
	t.Parallel()
	var document map[string]any
	if err := json.Unmarshal(Encode(OpenAPI()), &document); err != nil {
		t.Fatal(err)
	}
	schemas := document["components"].(map[string]any)["schemas"].(map[string]any)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if target, ok := v["$ref"].(string); ok && schemas[strings.TrimPrefix(target, "#/components/schemas/")] == nil {
				t.Errorf("there is no %s", target)
			}
			for _, part := range v {
				walk(part)
			}
		case []any:
			for _, part := range v {
				walk(part)
			}
		}
	}
	walk(document)
	for path, operations := range document["paths"].(map[string]any) {
		for method, operation := range operations.(map[string]any) {
			o := operation.(map[string]any)
			names := map[any]bool{}
			for _, p := range o["parameters"].([]any) {
				name := p.(map[string]any)["name"]
				if names[name] {
					t.Errorf("%s %s has the parameter %s twice", method, path, name)
				}
				names[name] = true
			}
			if n := strings.Count(path, "{"); n > len(names) || o["responses"].(map[string]any)["200"] == nil {
				t.Errorf("%s %s: %d parameters, want at least %d, and a response", method, path, len(names), n)
			}
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path, repository, keyword string
		want                              [][]string
	}{
		{"GET", "team/app/tree/main/", "team/app", "tree", [][]string{{"main"}}},
		{"GET", "team/app/tree/main", "team/app", "tree", [][]string{{"main"}}},
		{"HEAD", "app/raw/feature/x/a.txt", "app", "raw",
			[][]string{{"feature", "feature/x", "feature/x/a.txt"}}},
		{"GET", "app/raw/feature%2Fx/a.txt", "app", "raw", [][]string{{"feature/x", "feature/x/a.txt"}}},
		{"GET", "a%2Ftree%2Fb/tree/main/tree", "a/tree/b", "tree", [][]string{{"main", "main/tree"}}},
		{"GET", "tree/tree/tree", "tree", "tree", [][]string{{"tree"}}},
		{"GET", "app.git/log/feature/x/", "app.git", "log", [][]string{{"feature/x"}}},
		{"GET", "app/compare/a/b...c/d", "app", "compare", [][]string{{"a/b"}, {"c/d"}}},
		{"GET", "app/compare/a..c", "app", "compare", [][]string{{"a"}, {"c"}}},
		{"POST", "app/merges/check", "app", "merges/check", nil},
		{"POST", "app/merges", "app", "merges", nil},
		{"GET", "app/branches", "app", "branches", nil},
		{"GET", "app/branches/", "app", "branches", nil},
		{"PUT", "app/branches/feature/x", "app", "branches", nil},
		{"GET", "", "", "", nil},
		{"POST", "/", "", "", nil},
		{"PATCH", "team/app", "team/app", "", nil},
		{"DELETE", "app.git/", "app.git", "", nil},
		{"GET", "forks", "forks", "", nil},
		{"POST", "team/app/forks", "team/app", "forks", nil},
	} {
		r, _, err := Find(test.method, test.path)
		if err != nil || r == nil {
			t.Errorf("%s %s: error = %v", test.method, test.path, err)
			continue
		}
		revisions, err := r.Revisions()
		if r.Repository != test.repository || r.keyword() != test.keyword || !reflect.DeepEqual(revisions, test.want) ||
			err != nil {
			t.Errorf("%s %s: %s %s %q, %v", test.method, test.path, r.Repository, r.Path, revisions, err)
		}
	}
	for _, path := range []string{"app/tree", "app/tree/", "app/%zz/tree/x", "/tree/main"} {
		if r, methods, err := Find("GET", path); err == nil || r != nil || methods != nil {
			t.Errorf("%.50s: found %v, %v", path, r, methods)
		}
	}
	_, methods, err := Find("PATCH", "app/branches/main")
	if err != nil || strings.Join(methods, " ") != "GET PUT DELETE" {
		t.Errorf("methods = %v, error = %v", methods, err)
	}
}

func message(t *testing.T, method, path, query, body string) (proto.Message, error) {
	t.Helper()
	r, _, err := Find(method, path)
	if err != nil {
		t.Fatal(err)
	}
	alternatives, err := r.Revisions()
	if err != nil {
		t.Fatal(err)
	}
	var revisions []string
	for _, texts := range alternatives {
		revisions = append(revisions, texts[0])
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return r.Message(revisions, 0, values, []byte(body))
}

func TestMessages(t *testing.T) {
	t.Parallel()
	at := func(revision, path string) *packhorsev1.RevisionPath {
		return &packhorsev1.RevisionPath{Revision: revision, Path: path}
	}
	for _, test := range []struct {
		request, query, body string
		want                 proto.Message
	}{
		{"GET app/tree/main/a/b/", "recursive&limit=3&cursor=", "",
			&packhorsev1.TreeRequest{Path: at("main", "a/b"), Recursive: true, PageSize: 3}},
		{"GET app/tree/main/", "cursor=abc:TOKEN", "", &packhorsev1.TreeRequest{Path: at("abc", ""), PageToken: "TOKEN"}},
		{"GET app/log/main", "limit=2&cursor=abc:7&first_parent=1", "",
			&packhorsev1.LogRequest{Revisions: []string{"abc"}, Limit: 2, Skip: 7, FirstParent: true}},
		{"GET app/compare/a...b", "paths=x&paths=y&context=0", "", &packhorsev1.PatchRequest{From: "a", To: "b",
			MergeBase: true, Paths: []string{"x", "y"}, Context: proto.Int32(0)}},
		{"GET app/branches", "limit=5&cursor=abc", "",
			&packhorsev1.RefServiceListRequest{Prefix: "refs/heads/", PageSize: 5, PageToken: "abc"}},
		{"DELETE app/branches/a/b", "expected=abc", "", &packhorsev1.UpdateRequest{
			Updates: []*packhorsev1.UpdatedRef{{Name: "refs/heads/a/b", Expected: "abc"}}}},
		{"PUT app/branches/a", "", `{"new_oid": "abc", "expected": null}`, &packhorsev1.UpdateRequest{
			Updates: []*packhorsev1.UpdatedRef{{Name: "refs/heads/a", NewOid: "abc"}}}},
		{"POST app/commits", "", `{"branch":"main","changes":[{"put":{"path":"a","text":"x"}},` +
			`{"put":{"raw_path_base64":"/w==","content":"é"}}]}`, &packhorsev1.CommitServiceCreateRequest{Branch: "main",
			Changes: []*packhorsev1.FileChange{
				{Change: &packhorsev1.FileChange_Put{Put: &packhorsev1.PutFile{Path: "a",
					Source: &packhorsev1.PutFile_Text{Text: "x"}}}},
				{Change: &packhorsev1.FileChange_Put{Put: &packhorsev1.PutFile{RawPath: []byte{0xff},
					Source: &packhorsev1.PutFile_Content{Content: []byte("é")}}}}}}},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		got, err := message(t, method, path, test.query, test.body)
		if err != nil || !proto.Equal(got, test.want) {
			t.Errorf("%s?%s %s:\n%v, %v\nwant %v", test.request, test.query, test.body, got, err, test.want)
		}
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, test := range [][4]string{ // request, query, body, field
		{"GET app/tree/main/", "nothing=1", "", "nothing"},
		{"GET app/tree/main/", "path.revision=x", "", "path.revision"},
		{"GET app/tree/main/", "limit=x", "", "limit"},
		{"PUT app/branches/a", "", "", "new_oid"}, {"PUT app/branches/a", "", `{"new_oid":""}`, "new_oid"},
		{"DELETE app/branches/a", "new_oid=abc", "", "new_oid"},
		{"GET app/tree/main/", "limit=1&limit=2", "", "limit"},
		{"GET app/tree/main/", "repository=other", "", "repository"},
		{"GET app/branches", "prefix=refs/", "", "prefix"},
		{"GET app/log/main", "cursor=x:y", "", "cursor"},
		{"POST app/commits", "", `{"actor":{"name":"root"}}`, "actor"},
		{"POST app/commits", "", `{"repository":"other"}`, "repository"},
		{"POST app/commits", "", `{"Branch":"main"}`, "Branch"},
		{"POST app/commits", "", `{"raw_message":"a","raw_message_base64":"YQ=="}`, "raw_message_base64"},
		{"POST app/commits", "", `{"branch":7}`, "branch"},
		{"POST app/commits", "", `{"create":"yes"}`, "create"},
		{"POST app/commits", "", `{"changes":{}}`, "changes"},
		{"POST app/commits", "", `{"changes":[{"put":{"paths":"x"}}]}`, "changes[0].put.paths"},
		{"POST app/commits", "", `{"changes":[{},{"put":{"text":"x","content":"y"}}]}`, "changes[1].put.text"},
		{"POST app/commits", "", `{"changes":[{"put":{"path":"x"},"delete":{}}]}`, "changes[0].put"},
		{"POST app/commits", "", `{"raw_message_base64":"%"}`, "raw_message_base64"},
		{"POST app/commits", "", `{"branch_base64":"YQ=="}`, "branch_base64"},
		{"POST app/commits", "", strings.Repeat(`{"author":`, 50_000), ""},
		{"POST app/commits", "", `[]`, ""}, {"POST app/commits", "", `{`, ""}, {"POST app/commits", "", `{} {}`, ""},
		{"POST app/commits", "", "{\"branch\":\"\xff\"}", ""},
		{"POST app/commits", "", `{"changes":[` + strings.Repeat("{},", maxValues) + `{}]}`, ""},
		{"POST app/commits", "", `{"author":{"author":{}}}`, "author.author"},
		{"POST app/commits", "", `{"expected_head":""}`, "expected_head"},
		{"DELETE app/branches/a", "expected=", "", "expected"},
		{"POST app/refs", "", `{"updates":[{"name":"refs/heads/a","new_oid":""}]}`, "updates[0].new_oid"},
	} {
		method, path, _ := strings.Cut(test[0], " ")
		_, err := message(t, method, path, test[1], test[2])
		e, ok := err.(*fault.Error)
		if !ok || e.Kind != fault.Invalid || test[3] != "" && e.Field != test[3] {
			t.Errorf("%s?%s %.60s: error = %v, want one of %s", test[0], test[1], test[2], err, test[3])
		}
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	m := &packhorsev1.TreeResponse{Oid: "abc", NextPageToken: "next", Entries: []*packhorsev1.TreeEntry{
		{Path: []byte("<é>\n"), Mode: 0o100644}, {Path: []byte{0xff, 'a'}, Mode: 0o40000}}}
	const want = `{"entries":[{"path":"<é>\n","mode":"100644"},{"path_base64":"/2E=","mode":"040000"}],` +
		`"next":"next","oid":"abc"}`
	if got := string(Encode(NewObject(m, false))); got != want+"\n" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(Encode(NewObject(&packhorsev1.TreeResponse{}, true))); got != `{"entries":[]}`+"\n" {
		t.Errorf("an empty response is %s", got)
	}
	v := &packhorsev1.Version{Epoch: 1 << 60}
	if got := string(Encode(NewObject(v, false))); got != `{"epoch":"1152921504606846976"}`+"\n" {
		t.Errorf("a large number is %s", got)
	}
	err := &fault.Error{Kind: fault.Aborted, Msg: "it moved", Field: "branch", RetryAfter: 1500e6,
		Mismatches: []fault.Mismatch{{Name: "refs/heads/main", Expected: "a", Actual: "absent"}}}
	const problem = `{"field":"branch","kind":"aborted","message":"it moved","mismatches":[` +
		`{"name":"refs/heads/main","expected":"a","actual":"absent"}],"retry_after":2}`
	if got := string(Encode(NewError(err))); got != problem+"\n" {
		t.Errorf("got  %s\nwant %s", got, problem)
	}
}

// Documents can be read again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"branch":"main","changes":[{"put":{"path":"a","content_base64":"/w=="}}],"author":{"raw":"x"}}`))
	f.Add([]byte(`{"changes":[{"move":{"from":"a","to":"b"}}],"dry_run":true,"parents":["a","b"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, again := &packhorsev1.CommitServiceCreateRequest{}, &packhorsev1.CommitServiceCreateRequest{}
		if decode(text, m.ProtoReflect()) != nil {
			return
		}
		written := Encode(NewObject(m, false))
		if err := decode(written, again.ProtoReflect()); err != nil || !proto.Equal(m, again) {
			t.Fatalf("%s\n%s: %v", text, bytes.TrimSpace(written), err)
		}
	})
}
