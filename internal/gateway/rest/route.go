// Package rest maps the API for callers of a gateway, below /-/api/v1/repos/, to calls of the public API of nodes
// (proto/packhorse/v1). It has the table of routes, reads requests, and writes JSON. It does no I/O.
//
// A path is the repository, the keyword of a route, and its arguments. The first component that is a keyword, except
// for the first component of all, ends the repository. A slash may be written as %2F: a repository a/tree is written
// a%2Ftree, and a branch feature/x before a path feature%2Fx. Without a keyword the repository itself is meant, and
// without a repository all of them.
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
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	Prefix      = "/-/api/v1/repos/" // begins the path of each request
	OpenAPIPath = "/-/api/v1/openapi.json"
)

// Form is the form of a response.
type Form int

const (
	Document Form = iota // one JSON document, or JSON lines
	Lines                // JSON lines
	Bytes                // the bytes of a file, or a text
	File                 // an archive
)

// Route is one kind of request.
type Route struct {
	Method string
	// Path follows the repository: a keyword of one or two components, and arguments, which are fields of the request. ""
	// is the repository itself.
	Path    string
	call    string // service and procedure
	Form    Form
	Needs   auth.Operation // on the repository
	ForAll  bool           // the request is for all repositories, and its path has none
	prefix  string         // of refs
	body    string         // field whose element the request is; "": the whole message
	Summary string
}

// Routes has all routes. Those with two components in their keyword come first.
var Routes = []*Route{
	{Method: "GET", call: "RepositoryService.List", ForAll: true,
		Summary: "List the repositories that the caller may read."},
	{Method: "POST", call: "RepositoryService.Create", Needs: auth.Admin, ForAll: true,
		Summary: "Create a repository, empty or a fork."},
	{Method: "GET", call: "RepositoryService.Get", Summary: "Describe a repository."},
	{Method: "PATCH", call: "RepositoryService.Configure", Needs: auth.Admin, Summary: "Change settings."},
	{Method: "DELETE", call: "RepositoryService.Delete", Needs: auth.Admin, Summary: "Delete a repository."},
	{Method: "POST", Path: "rename", call: "RepositoryService.Rename", Needs: auth.Admin,
		Summary: "Give a repository another path."},
	{Method: "POST", Path: "forks", call: "RepositoryService.Fork", Summary: "Create a fork."},
	{Method: "POST", Path: "detach", call: "RepositoryService.Detach", Needs: auth.Admin,
		Summary: "Give a fork its own copy of all its objects."},
	{Method: "PUT", Path: "head", call: "RepositoryService.SetHead", Needs: auth.Admin,
		Summary: "Set the default branch."},
	{Method: "POST", Path: "maintain", call: "RepositoryService.Maintain", Needs: auth.Admin,
		Summary: "Repack a repository."},
	{Method: "POST", Path: "collect", call: "RepositoryService.Collect", Needs: auth.Admin,
		Summary: "Remove unreachable objects."},
	{Method: "POST", Path: "purge", call: "RepositoryService.Purge", Needs: auth.Admin,
		Summary: "Remove objects and all copies of them."},
	{Method: "POST", Path: "merges/check", call: "MergeService.Check", Form: Lines,
		Summary: "Merge pairs of revisions without writing anything."},
	{Method: "GET", Path: "tree/{revision}/{path}", call: "ObjectService.Tree", Summary: "List a directory."},
	{Method: "GET", Path: "raw/{revision}/{path}", call: "ObjectService.Blob", Form: Bytes, Summary: "Read a file."},
	{Method: "GET", Path: "log/{revisions}", call: "ObjectService.Log", Summary: "List commits."},
	{Method: "GET", Path: "commit/{revision}", call: "ObjectService.Commit", Summary: "Read a commit."},
	{Method: "GET", Path: "diff/{to}", call: "DiffService.Patch", Summary: "Compare a commit with its first parent."},
	{Method: "GET", Path: "compare/{from}...{to}", call: "DiffService.Patch",
		Summary: "Compare two revisions; A...B compares B with the merge base of both."},
	{Method: "GET", Path: "patches/{from}...{to}", call: "DiffService.FormatPatch", Form: Bytes,
		Summary: "Write commits as mails, as git format-patch does."},
	{Method: "GET", Path: "range-diff", call: "DiffService.RangeDiff", Form: Bytes,
		Summary: "Compare two versions of a series of commits, as git range-diff does."},
	{Method: "GET", Path: "blame/{revision}/{path}", call: "HistoryService.Blame",
		Summary: "Find the commits that the lines of a file come from."},
	{Method: "GET", Path: "last-commits/{revision}/{path}", call: "HistoryService.LastCommits",
		Summary: "Find the last commit of each entry of a directory."},
	{Method: "GET", Path: "archive/{revision}", call: "ArchiveService.Archive", Form: File,
		Summary: "Get an archive: REVISION.tar.gz, .tar.zst, .tar or .zip."},
	{Method: "GET", Path: "merge-base", call: "HistoryService.MergeBase",
		Summary: "Find the best common ancestors of revisions."},
	{Method: "POST", Path: "ahead-behind", call: "HistoryService.AheadBehind",
		Summary: "Count the commits that only one of two revisions reaches, for pairs."},
	{Method: "POST", Path: "is-ancestor", call: "HistoryService.IsAncestor",
		Summary: "Report whether one commit reaches the other, for pairs."},
	{Method: "GET", Path: "contains", call: "HistoryService.Contains",
		Summary: "List the branches and tags that reach commits."},
	{Method: "GET", Path: "refs", call: "RefService.List", Summary: "List refs."},
	{Method: "POST", Path: "refs", call: "RefService.Update", Needs: auth.Write, Summary: "Change refs."},
	{Method: "GET", Path: "tags", call: "RefService.List", prefix: "refs/tags/", Summary: "List tags."},
	{Method: "GET", Path: "branches", call: "RefService.List", prefix: "refs/heads/", Summary: "List branches."},
	{Method: "GET", Path: "branches/{name}", call: "RefService.Resolve", Summary: "Read a branch."},
	{Method: "PUT", Path: "branches/{name}", call: "RefService.Update", Needs: auth.Write, body: "updates",
		Summary: "Create or change a branch."},
	{Method: "DELETE", Path: "branches/{name}", call: "RefService.Update", Needs: auth.Write, body: "updates",
		Summary: "Delete a branch."},
	{Method: "POST", Path: "commits", call: "CommitService.Create", Needs: auth.Write,
		Summary: "Make a commit from changes of files."},
	{Method: "POST", Path: "patches", call: "CommitService.ApplyPatch", Needs: auth.Write,
		Summary: "Make commits from a diff or a mailbox."},
	{Method: "POST", Path: "merges", call: "MergeService.Merge", Needs: auth.Write,
		Summary: "Merge, rebase, pick or revert commits."},
}

// keyword returns the part of the path before the arguments.
func (r *Route) keyword() string {
	keyword, _, _ := strings.Cut(r.Path, "/{")
	return keyword
}

// arguments returns the names of the arguments in the path.
func (r *Route) arguments() (names []string) {
	for part := range strings.SplitSeq(r.Path, "{") {
		if name, _, ok := strings.Cut(part, "}"); ok {
			names = append(names, name)
		}
	}
	return names
}

// procedure returns the procedure of the route.
func (r *Route) procedure() protoreflect.MethodDescriptor {
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("packhorse.v1." + r.call))
	return found.(protoreflect.MethodDescriptor) // a test checks all routes
}

// Procedure returns the path of the procedure of the route.
func (r *Route) Procedure() string { return "/packhorse.v1." + strings.Replace(r.call, ".", "/", 1) }

// NewResponse returns an empty message of the route's response.
func (r *Route) NewResponse() proto.Message { return newMessage(r.procedure().Output()) }

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, _ := protoregistry.GlobalTypes.FindMessageByName(d.FullName()) // it is linked
	return t.New().Interface()
}

// Request is a request as it was sent.
type Request struct {
	*Route
	Repository string   // its path
	parts      []string // the components after the keyword, unescaped
}

// Find finds the route for a request, of which path is the escaped path after Prefix. If there are methods, the path is
// for these, and the request is nil.
func Find(method, path string) (r *Request, methods []string, err error) {
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	for i, part := range parts {
		if parts[i], err = url.PathUnescape(part); err != nil {
			return nil, nil, invalid("", "bad escape in the path")
		}
		if !utf8.ValidString(parts[i]) { // messages cannot hold it
			return nil, nil, invalid("", "the path is not UTF-8")
		}
	}
	at := 1 + slices.IndexFunc(parts[1:], isKeyword)
	if at == 0 {
		at = len(parts)
	}
	r = &Request{Repository: strings.Join(parts[:at], "/")}
	for _, route := range Routes {
		n := at
		if route.Path != "" {
			n += strings.Count(route.keyword(), "/") + 1
		}
		if route.ForAll != (r.Repository == "") || len(parts) < n || strings.Join(parts[at:n], "/") != route.keyword() ||
			(strings.Join(parts[n:], "") == "") != (route.Path == route.keyword()) {
			continue
		}
		if route.Method == method || route.Method == http.MethodGet && method == http.MethodHead {
			r.Route, r.parts = route, parts[n:]
			return r, nil, nil
		}
		methods = append(methods, route.Method)
	}
	if methods == nil {
		return nil, nil, fault.New(fault.NotFound, "not found: a request is %sREPOSITORY/KEYWORD/..., as in "+
			"%steam/app/tree/main/; %s needs other arguments, see %s", Prefix, Prefix, parts[at], OpenAPIPath)
	}
	return nil, methods, nil
}

// Argument returns everything after the keyword, without a slash at the end.
func (r *Request) Argument() string { return strings.TrimSuffix(strings.Join(r.parts, "/"), "/") }

// isKeyword reports whether a component of a path is a keyword, or the first one of a keyword.
func isKeyword(part string) bool {
	return slices.ContainsFunc(Routes, func(r *Route) bool {
		first, _, _ := strings.Cut(r.Path, "/")
		return first == part
	})
}

// maxParts is the maximum number of components of a revision that a path follows.
const maxParts = 16

// Revisions returns the revisions in the path, each as alternatives, the shortest one first. The longest one that
// exists is meant.
func (r *Request) Revisions() (list [][]string, err error) {
	switch names := r.arguments(); {
	case len(names) == 0 || names[0] == "name":
		return nil, nil
	case len(names) == 1:
		return [][]string{{r.Argument()}}, nil
	case names[1] == "path":
		var alternatives []string
		for i := range min(len(r.parts), maxParts) {
			if r.parts[i] == "" { // a slash at the end, or two of them
				break
			}
			alternatives = append(alternatives, strings.Join(r.parts[:i+1], "/"))
		}
		if alternatives == nil {
			return nil, invalid("", "the path has no revision")
		}
		return [][]string{alternatives}, nil
	}
	left, right, _ := strings.Cut(r.Argument(), "..")
	right = strings.TrimPrefix(right, ".")
	if left == "" || right == "" {
		return nil, invalid("", "want two revisions, as in main...topic")
	}
	return [][]string{{left}, {right}}, nil
}

// Message makes the message of the request. revisions are those of the path, resolved, and chosen is the alternative of
// the first one that was used. A cursor with a revision replaces that. The body is nil if there is none.
func (r *Request) Message(revisions []string, chosen int, query url.Values, body []byte) (proto.Message, error) {
	m := newMessage(r.procedure().Input())
	part := m.ProtoReflect()
	if r.body != "" {
		part = part.Mutable(part.Descriptor().Fields().ByName(protoreflect.Name(r.body))).List().AppendMutable().Message()
	}
	if id, position, ok := strings.Cut(query.Get("cursor"), ":"); ok && len(revisions) == 1 {
		revisions[0] = id
		query.Set("cursor", position)
	}
	err := setFields(part, "", r.document(part.Descriptor(), revisions, chosen))
	if err == nil {
		err = r.setQuery(part, query)
	}
	if err == nil && len(body) > 0 {
		err = decode(body, part)
	}
	if err != nil {
		return nil, err
	}
	f := part.Descriptor().Fields().ByName("new_oid")
	if r.body != "" && part.Has(f) != (r.Method == http.MethodPut) {
		return nil, invalid("new_oid", "PUT needs the new object ID, DELETE takes none")
	}
	for name, problem := range map[protoreflect.Name]string{"repository": "the path of the URL has the repository",
		"actor": "the actor is the caller"} {
		if f := part.Descriptor().Fields().ByName(name); f != nil && part.Has(f) && !r.ForAll {
			return nil, invalid(string(name), "%s", problem)
		}
	}
	return m, nil
}

// document returns the fields of a message that the path determines.
func (r *Request) document(d protoreflect.MessageDescriptor, revisions []string, chosen int) map[string]any {
	document := map[string]any{}
	if r.prefix != "" {
		document["prefix"] = r.prefix
	}
	names := r.arguments()
	for i, id := range revisions {
		document[names[i]] = id
	}
	switch {
	case slices.Contains(names, "path"):
		document["path"] = strings.TrimSuffix(strings.Join(r.parts[chosen+1:], "/"), "/")
		if d.Fields().ByName("path").Message() != nil {
			return map[string]any{"path": document}
		}
	case slices.Contains(names, "revisions"):
		document["revisions"] = []any{revisions[0]}
	case slices.Contains(names, "name"):
		document["name"] = "refs/heads/" + strings.TrimPrefix(r.Argument(), "refs/heads/")
	case d.Fields().ByName("merge_base") != nil:
		document["merge_base"] = strings.Contains(r.Argument(), "...")
	}
	return document
}

// renamed has fields whose parameters have other names.
var renamed = map[string]string{"page_size": "limit", "page_token": "cursor", "skip": "cursor"}

// setQuery sets fields from the parameters of a URL.
func (r *Request) setQuery(m protoreflect.Message, query url.Values) error {
	for name, values := range query {
		field := name
		for from, to := range renamed {
			if f, _ := findField(m.Descriptor(), from); to == name && f != nil {
				field = from
			}
		}
		var value any = values[0]
		f, _ := findField(m.Descriptor(), field)
		switch {
		case strings.Join(values, "") == "" && name == "cursor": // the first page
			continue
		case f != nil && f.IsList():
			list := make([]any, len(values))
			for i := range values {
				list[i] = values[i]
			}
			value = list
		case len(values) > 1:
			return invalid(name, "it is set twice")
		case f != nil && f.Kind() == protoreflect.BoolKind && values[0] == "": // ?recursive
			value = true
		}
		if err := setField(m, field, name, value); err != nil {
			return err
		}
	}
	return nil
}

// IsChange reports whether the request changes something.
func (r *Request) IsChange() bool {
	return r.Needs != auth.Read || r.IsAdministration() && r.Method != http.MethodGet
}

// IsAdministration reports whether the request is for the repository as a whole. Its message names no revisions.
func (r *Request) IsAdministration() bool { return strings.HasPrefix(r.call, "RepositoryService.") }

// Others returns the paths in the message of a request: of a repository that it creates, and of one that it reads in
// addition to that of the request. Empty means none.
func (r *Request) Others(m proto.Message) (created, read string) {
	switch m := m.(type) {
	case *packhorsev1.CreateRequest:
		return m.GetRepository(), m.GetForkOf()
	case *packhorsev1.RenameRequest:
		return m.GetTo(), ""
	case *packhorsev1.ForkRequest:
		return m.GetTarget(), ""
	}
	return "", ""
}

// SetCaller sets the caller of a request that changes something, and its rules.
func (r *Request) SetCaller(m proto.Message, name, address string, rules *packhorsev1.RefRules) {
	f := m.ProtoReflect().Descriptor().Fields().ByName("actor")
	if f != nil {
		actor := &packhorsev1.Actor{Name: name, Address: address, Rules: rules}
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
