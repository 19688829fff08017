package rest

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// OpenAPI returns the description of the API, of OpenAPI 3.1. It is made from the routes and the definitions of the
// calls.
func OpenAPI() Object {
	paths, schemas := Object{}, Object{}
	problem := Object{"description": "An error.", "content": contentOf("application/json", Object{"type": "object",
		"properties": Object{"error": schemaOf(schemas, (&packhorsev1.Fault{}).ProtoReflect().Descriptor())}})}
	for _, r := range slices.Concat(Routes, ServerRoutes) {
		input := r.procedure().Input()
		if r.body != "" {
			input = input.Fields().ByName(protoreflect.Name(r.body)).Message()
		}
		output := contentOf("application/json", schemaOf(schemas, r.procedure().Output()))
		switch r.Form {
		case Lines:
			output = contentOf("application/jsonl", schemaOf(schemas, r.procedure().Output()))
		case Bytes, File:
			output = contentOf("*/*", Object{})
		}
		operation := Object{"summary": r.Summary, "parameters": r.parameters(input),
			"responses": Object{"200": Object{"description": "Success.", "content": output}, "default": problem}}
		if r.Method != "GET" && r.Method != "DELETE" {
			operation["requestBody"] = Object{"required": true,
				"content": contentOf("application/json", schemaOf(schemas, input))}
		}
		path := r.fullPath()
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

// fullPath returns the path of the route as a template.
func (r *Route) fullPath() string {
	switch {
	case slices.Contains(ServerRoutes, r):
		return ServerPrefix + r.Path
	case r.ForAll:
		return strings.TrimSuffix(Prefix, "/")
	}
	return strings.TrimSuffix(Prefix+"{repository}/"+r.Path, "/")
}

func contentOf(kind string, schema Object) Object { return Object{kind: Object{"schema": schema}} }

// parameters returns the parameters of a path, and those of a query: the other fields of the request that are values or
// lists of values.
func (r *Route) parameters(input protoreflect.MessageDescriptor) (list []any) {
	names := r.arguments()
	if !r.ForAll {
		names = append(names, "repository")
	}
	for _, name := range names {
		list = append(list, Object{"name": name, "in": "path", "required": true, "schema": Object{"type": "string"}})
	}
	if r.Method != "GET" && r.Method != "DELETE" || r.Form == File {
		return list
	}
	fields := input.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if f.Message() != nil || slices.Contains(names, name) || name == "new_oid" || r.prefix != "" && name == "prefix" {
			continue
		}
		if renamed[name] != "" {
			name = renamed[name]
		}
		list = append(list, Object{"name": name, "in": "query", "schema": fieldSchema(nil, f)})
	}
	return list
}

// schemaOf adds the schema of a message, and of those in it, and returns a reference to it.
func schemaOf(schemas Object, d protoreflect.MessageDescriptor) Object {
	name := string(d.Name())
	if schemas[name] == nil {
		properties := Object{}
		schemas[name] = Object{"type": "object", "properties": properties}
		fields := d.Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if f.Name() == "repository" && name != "CreateRequest" || f.Name() == "actor" || f.Name() == "caller_limit" {
				continue
			}
			properties[outName(f)] = fieldSchema(schemas, f)
			if f.Kind() == protoreflect.BytesKind {
				properties[outName(f)+base64Suffix] = Object{"type": "string", "contentEncoding": "base64"}
			}
		}
	}
	return Object{"$ref": "#/components/schemas/" + name}
}

func fieldSchema(schemas Object, f protoreflect.FieldDescriptor) Object {
	schema := Object{"type": typeName(f)}
	switch {
	case f.Name() == "retry_after": // in seconds
		schema["type"] = "integer"
	case f.IsMap():
		return Object{"type": "object", "additionalProperties": Object{"type": "string"}}
	case isDuration(f), f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp":
		schema["type"] = "string"
	case f.Message() != nil:
		schema = schemaOf(schemas, f.Message())
	}
	if f.IsList() {
		schema = Object{"type": "array", "items": schema}
	}
	return schema
}
