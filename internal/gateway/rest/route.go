// Package rest maps the API for callers of a gateway, below /-/api/v1/repos/, to calls of the public API of nodes
// (proto/packhorse/v1). It has the table of routes, reads requests, and writes JSON. It does no I/O.
//
// A path is the repository, the keyword of a route, and its arguments. The first component that is a keyword, except
// for the first component of all, ends the repository. A slash may be written as %2F: a repository a/tree is written
// a%2Ftree, and a branch feature/x before a path feature%2Fx.
package rest

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/packhorse-git/packhorse/internal/fault"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Prefix is what paths of the API begin with.
const Prefix = "/-/api/v1/repos/"

// Form is the form of a response.
type Form int

const (
	Document Form = iota // one JSON document, or JSON lines
	Patch                // the same, of files with their patches; or a text
	Lines                // JSON lines
	Text                 // a text
	Raw                  // the bytes of a blob
	File                 // an archive
)

// tail is how the arguments of a path are read.
type tail int

const (
	none         tail = iota
	revision          // a revision
	revisionPath      // a revision and a path, which may be empty
	revisionPair      // LEFT...RIGHT or LEFT..RIGHT
	name              // the name of a branch
)

// Route is one kind of request.
type Route struct {
	Method  string
	Keyword string // of one or two components
	tail    tail
	// fields of the request for the arguments: of the revision and the path, or of both revisions
	fields  [2]string
	call    string // service and procedure
	Form    Form
	Writes  bool
	fixed   [2]string // a field and its value
	body    string    // field whose element the body is; "": the whole request
	Summary string
}

// Routes has all routes. Those with two components in their keyword come first.
var Routes = []*Route{
	{Method: "POST", Keyword: "merges/check", call: "MergeService.Check", Form: Lines,
		Summary: "Merge pairs of revisions without writing anything."},
	{Method: "GET", Keyword: "tree", tail: revisionPath, fields: [2]string{"path.revision", "path.path"},
		call: "ObjectService.Tree", Summary: "List a directory."},
	{Method: "GET", Keyword: "raw", tail: revisionPath, fields: [2]string{"path.revision", "path.path"},
		call: "ObjectService.Blob", Form: Raw, Summary: "Read a file."},
	{Method: "GET", Keyword: "log", tail: revision, fields: [2]string{"revisions"}, call: "ObjectService.Log",
		Summary: "List commits."},
	{Method: "GET", Keyword: "commit", tail: revision, fields: [2]string{"revision"}, call: "ObjectService.Commit",
		Summary: "Read a commit."},
	{Method: "GET", Keyword: "diff", tail: revision, fields: [2]string{"to"}, call: "DiffService.Patch", Form: Patch,
		Summary: "Compare a commit with its first parent."},
	{Method: "GET", Keyword: "compare", tail: revisionPair, fields: [2]string{"from", "to"}, call: "DiffService.Patch",
		Form: Patch, Summary: "Compare two revisions; A...B compares B with the merge base of both."},
	{Method: "GET", Keyword: "patches", tail: revisionPair, fields: [2]string{"from", "to"},
		call: "DiffService.FormatPatch", Form: Text, Summary: "Write commits as mails, as git format-patch does."},
	{Method: "GET", Keyword: "range-diff", call: "DiffService.RangeDiff", Form: Text,
		Summary: "Compare two versions of a series of commits, as git range-diff does."},
	{Method: "GET", Keyword: "blame", tail: revisionPath, fields: [2]string{"revision", "path"},
		call: "HistoryService.Blame", Summary: "Find the commits that the lines of a file come from."},
	{Method: "GET", Keyword: "last-commits", tail: revisionPath, fields: [2]string{"revision", "path"},
		call: "HistoryService.LastCommits", Summary: "Find the last commit of each entry of a directory."},
	{Method: "GET", Keyword: "archive", tail: revision, fields: [2]string{"revision"}, call: "ArchiveService.Archive",
		Form: File, Summary: "Get an archive: REVISION.tar.gz, .tar.zst, .tar or .zip."},
	{Method: "GET", Keyword: "merge-base", call: "HistoryService.MergeBase",
		Summary: "Find the best common ancestors of revisions."},
	{Method: "GET", Keyword: "ahead-behind", tail: revisionPair, fields: [2]string{"pairs.left", "pairs.right"},
		call: "HistoryService.AheadBehind", Summary: "Count the commits that only one of two revisions reaches."},
	{Method: "POST", Keyword: "ahead-behind", call: "HistoryService.AheadBehind",
		Summary: "Count the commits that only one of two revisions reaches, for pairs."},
	{Method: "POST", Keyword: "is-ancestor", call: "HistoryService.IsAncestor",
		Summary: "Report whether one commit reaches the other, for pairs."},
	{Method: "GET", Keyword: "contains", call: "HistoryService.Contains",
		Summary: "List the branches and tags that reach commits."},
	{Method: "GET", Keyword: "refs", call: "RefService.List", Summary: "List refs."},
	{Method: "POST", Keyword: "refs", call: "RefService.Update", Writes: true, Summary: "Change refs."},
	{Method: "GET", Keyword: "tags", call: "RefService.List", fixed: [2]string{"prefix", "refs/tags/"},
		Summary: "List tags."},
	{Method: "GET", Keyword: "branches", call: "RefService.List", fixed: [2]string{"prefix", "refs/heads/"},
		Summary: "List branches."},
	{Method: "GET", Keyword: "branches", tail: name, fields: [2]string{"name"}, call: "RefService.Resolve",
		Summary: "Read a branch."},
	{Method: "PUT", Keyword: "branches", tail: name, fields: [2]string{"updates.name"}, call: "RefService.Update",
		Writes: true, fixed: [2]string{"atomic", "true"}, body: "updates", Summary: "Create or change a branch."},
	{Method: "DELETE", Keyword: "branches", tail: name, fields: [2]string{"updates.name"}, call: "RefService.Update",
		Writes: true, fixed: [2]string{"atomic", "true"}, body: "updates", Summary: "Delete a branch."},
	{Method: "POST", Keyword: "commits", call: "CommitService.Create", Writes: true,
		Summary: "Make a commit from changes of files."},
	{Method: "POST", Keyword: "patches", call: "CommitService.ApplyPatch", Writes: true,
		Summary: "Make commits from a diff or a mailbox."},
	{Method: "POST", Keyword: "merges", call: "MergeService.Merge", Writes: true,
		Summary: "Merge, rebase, pick or revert commits."},
}

// Call returns the procedure of the route.
func (r *Route) Call() protoreflect.MethodDescriptor {
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("packhorse.v1." + r.call))
	return found.(protoreflect.MethodDescriptor) // a test checks all routes
}

// Procedure returns the path of the procedure of the route.
func (r *Route) Procedure() string {
	service, method, _ := strings.Cut(r.call, ".")
	return "/packhorse.v1." + service + "/" + method
}

// NewResponse returns an empty message of the route's response.
func (r *Route) NewResponse() proto.Message { return newMessage(r.Call().Output()) }

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, _ := protoregistry.GlobalTypes.FindMessageByName(d.FullName()) // it is linked
	return t.New().Interface()
}

// Request is a request as it was sent.
type Request struct {
	*Route
	Repository string   // its path
	arguments  []string // the components after the keyword, unescaped
}

// Find finds the route for a request, of which path is the escaped path after Prefix. If there are methods, the path is
// for these, and the request is nil.
func Find(method, path string) (r *Request, methods []string, err error) {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if parts[i], err = url.PathUnescape(part); err != nil {
			return nil, nil, fault.New(fault.Invalid, "bad escape in the path")
		}
	}
	at := 1 + slices.IndexFunc(parts[1:], isKeyword)
	if at == 0 {
		return nil, nil, fault.New(fault.NotFound, "not found; a request is %sREPOSITORY/KEYWORD/..., as in "+
			"%steam/app/tree/main/", Prefix, Prefix)
	}
	r = &Request{Repository: strings.Join(parts[:at], "/")}
	if !utf8.ValidString(r.Repository) { // messages cannot hold it
		return nil, nil, fault.New(fault.NotFound, "no such repository: its name is not UTF-8")
	}
	for _, route := range Routes {
		n := strings.Count(route.Keyword, "/") + 1
		if len(parts) < at+n || strings.Join(parts[at:at+n], "/") != route.Keyword {
			continue
		}
		arguments := parts[at+n:]
		if isBare := strings.Join(arguments, "") == ""; isBare != (route.tail == none) {
			continue
		}
		if route.Method == method || route.Method == http.MethodGet && method == http.MethodHead {
			r.Route, r.arguments = route, arguments
			return r, nil, nil
		}
		methods = append(methods, route.Method)
	}
	if methods == nil {
		return nil, nil, fault.New(fault.NotFound, "not found; %s needs other arguments, see %sopenapi.json", parts[at],
			strings.TrimSuffix(Prefix, "repos/"))
	}
	return nil, methods, nil
}

// Argument returns everything after the keyword.
func (r *Request) Argument() string { return strings.Join(r.arguments, "/") }

// isKeyword reports whether a component of a path is a keyword, or the first one of a keyword.
func isKeyword(part string) bool {
	return slices.ContainsFunc(Routes, func(r *Route) bool {
		first, _, _ := strings.Cut(r.Keyword, "/")
		return first == part
	})
}

// maxParts is the maximum number of components of a revision that a path follows.
const maxParts = 16

// Revisions returns the revisions in the path, each as alternatives, the shortest one first. The longest one that
// exists is meant.
func (r *Request) Revisions() (list [][]string, err error) {
	whole := strings.TrimSuffix(r.Argument(), "/")
	switch r.tail {
	case revision, revisionPair:
		if !utf8.ValidString(whole) {
			return nil, fault.New(fault.Invalid, "the revision is not UTF-8")
		}
	}
	switch r.tail {
	case revision:
		return [][]string{{whole}}, nil
	case revisionPath:
		var alternatives []string
		for i := range min(len(r.arguments), maxParts) {
			if r.arguments[i] == "" || !utf8.ValidString(r.arguments[i]) { // a slash at the end, or two of them
				break
			}
			alternatives = append(alternatives, strings.Join(r.arguments[:i+1], "/"))
		}
		if alternatives == nil {
			return nil, fault.New(fault.Invalid, "the path has no revision")
		}
		return [][]string{alternatives}, nil
	case revisionPair:
		left, right, ok := strings.Cut(whole, "..")
		right = strings.TrimPrefix(right, ".")
		if !ok || left == "" || right == "" {
			return nil, fault.New(fault.Invalid, "want two revisions, as in main...topic")
		}
		return [][]string{{left}, {right}}, nil
	}
	return nil, nil
}

// Message makes the message of the request. revisions are those of the path, resolved, and chosen is the alternative of
// the first one that was used. A cursor with a revision replaces that, and is removed from the query. The body is
// nil if there is none.
func (r *Request) Message(revisions []string, chosen int, query url.Values, body []byte) (proto.Message, error) {
	m := newMessage(r.Call().Input())
	if err := r.useCursor(m, revisions, query); err != nil {
		return nil, err
	}
	whole := r.Argument()
	arguments := revisions
	switch r.tail {
	case revisionPath:
		path := strings.TrimSuffix(strings.Join(r.arguments[chosen+1:], "/"), "/")
		arguments = []string{revisions[0], path}
	case name:
		arguments = []string{"refs/heads/" + strings.TrimPrefix(whole, "refs/heads/")}
	case revisionPair:
		if patch, ok := m.(*packhorsev1.PatchRequest); ok {
			patch.MergeBase = strings.Contains(whole, "...")
		}
	}
	for i, value := range arguments {
		if err := set(m.ProtoReflect(), r.fields[i], r.fields[i], value); err != nil {
			return nil, err
		}
	}
	if r.fixed[0] != "" {
		if err := set(m.ProtoReflect(), r.fixed[0], r.fixed[0], r.fixed[1]); err != nil {
			return nil, err
		}
	}
	part := m.ProtoReflect()
	if r.body != "" {
		part = part.Mutable(part.Descriptor().Fields().ByName(protoreflect.Name(r.body))).List().Get(0).Message()
	}
	if err := r.addQuery(part, query); err != nil {
		return nil, err
	}
	if len(body) > 0 {
		if err := decode(body, part.Interface()); err != nil {
			return nil, err
		}
	}
	for name, problem := range map[protoreflect.Name]string{"repository": "the path of the URL has the repository",
		"actor": "the actor is the caller"} {
		if f := part.Descriptor().Fields().ByName(name); f != nil && part.Has(f) {
			return nil, fault.InField(string(name), fault.New(fault.Invalid, "%s", problem))
		}
	}
	return m, nil
}

// renamed has the names of parameters that differ from the names of fields.
var renamed = map[string]string{"limit": "page_size", "cursor": "page_token"}

// addQuery sets fields from the parameters of a URL.
func (r *Request) addQuery(m protoreflect.Message, query url.Values) error {
	for name, values := range query {
		if r.Form == Raw { // a range has a header
			return unknownField(name)
		}
		field := name
		if m.Descriptor().Fields().ByName(protoreflect.Name(name)) == nil && renamed[name] != "" {
			field = renamed[name]
		}
		for _, value := range values {
			if err := set(m, field, name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// set sets a field, as in "path.revision", to a value, and adds to a list. name is its name in errors.
func set(m protoreflect.Message, field, name, text string) error {
	first, rest, isBelow := strings.Cut(field, ".")
	f, isBase64 := inField(m, first)
	switch {
	case f == nil:
		return unknownField(name)
	case isBelow && f.IsList():
		list := m.Mutable(f).List()
		if list.Len() == 0 {
			list.AppendMutable()
		}
		return set(list.Get(0).Message(), rest, name, text)
	case isBelow && f.Kind() == protoreflect.MessageKind:
		return set(m.Mutable(f).Message(), rest, name, text)
	}
	if text == "" && f.Kind() == protoreflect.BoolKind { // ?recursive
		text = "true"
	}
	v, err := parseValue(f, text, isBase64)
	if err != nil {
		return fault.InField(name, fault.New(fault.Invalid, "want a value of type %s", typeName(f)))
	}
	if f.IsList() {
		m.Mutable(f).List().Append(v)
		return nil
	}
	if err := checkOnce(m, f, name); err != nil {
		return err
	}
	m.Set(f, v)
	return nil
}

// SetCaller sets the caller of a request that changes something.
func (r *Request) SetCaller(m proto.Message, name, address string) {
	f := m.ProtoReflect().Descriptor().Fields().ByName("actor")
	if f != nil {
		actor := &packhorsev1.Actor{Name: name, Address: address}
		m.ProtoReflect().Set(f, protoreflect.ValueOfMessage(actor.ProtoReflect()))
	}
}

// Encode encodes the message of the request for a path of the repository.
func (r *Request) Encode(m proto.Message, repository string) []byte {
	fields := m.ProtoReflect().Descriptor().Fields()
	m.ProtoReflect().Set(fields.ByName("repository"), protoreflect.ValueOfString(repository))
	text, _ := proto.Marshal(m) // all strings are UTF-8
	return text
}
