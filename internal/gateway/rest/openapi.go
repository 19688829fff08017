package rest

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// OpenAPI returns the description of the API, of OpenAPI 3.1. It is made from the routes and the definitions of the
// calls.
func OpenAPI() Object {
	paths, schemas := Object{}, Object{"Error": errorSchema}
	for _, r := range Routes {
		path, parameters := r.openPath()
		input := r.Call().Input()
		if r.body != "" {
			input = input.Fields().ByName(protoreflect.Name(r.body)).Message()
		}
		operation := Object{"summary": r.Summary, "operationId": strings.ToLower(r.Method) + "_" + strings.Map(asID, path),
			"responses": Object{"200": r.openResponse(schemas), "default": Object{"description": "An error.",
				"content": Object{"application/json": Object{"schema": ref("Error")}}}}}
		if r.Method == "GET" || r.Method == "DELETE" {
			parameters = append(parameters, r.openQuery(input)...)
		} else {
			operation["requestBody"] = Object{"required": true,
				"content": Object{"application/json": Object{"schema": schemaOf(schemas, input)}}}
		}
		operation["parameters"] = parameters
		if paths[path] == nil {
			paths[path] = Object{}
		}
		paths[path].(Object)[strings.ToLower(r.Method)] = operation
	}
	return Object{
		"openapi": "3.1.0",
		"info":    Object{"title": "Packhorse", "version": "1"},
		"paths":   paths,
		"components": Object{"schemas": schemas, "securitySchemes": Object{
			"password": Object{"type": "http", "scheme": "basic"}, "token": Object{"type": "http", "scheme": "bearer"}}},
		"security": []any{Object{}, Object{"password": []string{}}, Object{"token": []string{}}},
	}
}

var errorSchema = Object{"type": "object", "required": []string{"error"}, "properties": Object{
	"error": Object{"type": "object", "required": []string{"kind", "message"}, "properties": Object{
		"kind": Object{"type": "string"}, "message": Object{"type": "string"}, "field": Object{"type": "string"},
		"retry_after": Object{"type": "integer"}, "mismatches": Object{"type": "array", "items": Object{"type": "object",
			"properties": Object{"name": Object{"type": "string"}, "expected": Object{"type": "string"},
				"actual": Object{"type": "string"}}}}}}}}

// asID replaces what an identifier cannot have.
func asID(c rune) rune {
	if c == '/' || c == '-' || c == '.' || c == '{' || c == '}' {
		return '_'
	}
	return c
}

func ref(schema string) Object { return Object{"$ref": "#/components/schemas/" + schema} }

// openPath returns the path of a route, and its parameters.
func (r *Route) openPath() (path string, parameters []any) {
	path = Prefix + "{repository}/" + r.Keyword + map[tail]string{none: "", revision: "/{revision}",
		revisionPath: "/{revision}/{path}", revisionPair: "/{left}...{right}", name: "/{name}"}[r.tail]
	for part := range strings.SplitSeq(path, "{") {
		if name, _, ok := strings.Cut(part, "}"); ok {
			parameters = append(parameters, Object{"name": name, "in": "path", "required": true,
				"schema": Object{"type": "string"}})
		}
	}
	return path, parameters
}

// openQuery returns the parameters of a query: the fields of the request that are values or lists of values.
func (r *Route) openQuery(input protoreflect.MessageDescriptor) (parameters []any) {
	if r.Form == Raw || r.Form == File {
		return nil
	}
	fields := input.Fields()
	set := r.fields[0] + " " + r.fields[1] + " " + r.fixed[0]
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if f.Kind() == protoreflect.MessageKind || name == "repository" || strings.HasSuffix(name, "name") ||
			strings.Contains(" "+set+" ", " "+name+" ") {
			continue
		}
		for short, long := range renamed {
			if name == long {
				name = short
			}
		}
		schema := Object{"type": typeName(f)}
		if f.IsList() {
			schema = Object{"type": "array", "items": schema}
		}
		parameters = append(parameters, Object{"name": name, "in": "query", "schema": schema})
	}
	return parameters
}

// openResponse describes a successful response.
func (r *Route) openResponse(schemas Object) Object {
	content := Object{}
	schema := Object{"schema": schemaOf(schemas, r.Call().Output())}
	switch r.Form {
	case Raw:
		content["application/octet-stream"], content["text/plain"] = Object{}, Object{}
	case File:
		content["application/gzip"], content["application/zstd"] = Object{}, Object{}
		content["application/x-tar"], content["application/zip"] = Object{}, Object{}
	case Text:
		content["text/plain"] = Object{}
	case Lines:
		content["application/jsonl"] = schema
	case Patch:
		content["text/plain"], content["application/jsonl"] = Object{}, schema
		content["application/json"] = Object{"schema": Object{"type": "object", "properties": Object{
			"files":   Object{"type": "array", "items": ref("FileDiff")},
			"summary": ref("PatchSummary")}}}
	default:
		content["application/json"], content["application/jsonl"] = schema, schema
	}
	return Object{"description": "Success.", "content": content}
}

// schemaOf adds the schema of a message, and of those in it, and returns a reference to it.
func schemaOf(schemas Object, d protoreflect.MessageDescriptor) Object {
	name := string(d.Name())
	if name == "Fault" {
		return errorSchema["properties"].(Object)["error"].(Object)
	}
	if schemas[name] != nil {
		return ref(name)
	}
	properties := Object{}
	schemas[name] = Object{"type": "object", "properties": properties}
	fields := d.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "repository" || f.Name() == "actor" {
			continue
		}
		schema := Object{"type": typeName(f)}
		switch {
		case f.Kind() == protoreflect.MessageKind:
			schema = schemaOf(schemas, f.Message())
		case f.Kind() == protoreflect.Uint32Kind && strings.HasSuffix(string(f.Name()), "mode"),
			f.Kind() == protoreflect.Uint64Kind:
			schema["type"] = "string"
		case f.Kind() == protoreflect.Int64Kind:
			schema["type"] = []string{"integer", "string"} // from 2^53 on
		}
		if f.IsList() {
			schema = Object{"type": "array", "items": schema}
		}
		properties[outName(f)] = schema
		if f.Kind() == protoreflect.BytesKind {
			properties[outName(f)+base64Suffix] = Object{"type": "string", "contentEncoding": "base64"}
		}
	}
	return ref(name)
}
