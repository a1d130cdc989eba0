"""Which test runs each block of code of the documents."""

HERE = "tests/unit/test_document_blocks.py::test_"
TRAINING = f"sh {HERE}commands_of_the_training_are_there"
FIRST_HOUR = "tests/e2e/test_first_hour.py::test_the_hour_goes_as_the_page_says"
STORE = "tests/e2e/test_store_page.py::test_the_commands_of_the_page_do_what_it_says"
CLIENT = "tests/e2e/test_client_page.py::test_the_examples_of_the_pages_run"
README = "tests/e2e/test_readme.py::test_the_commands_give_the_answer_and_the_queries_find_it"
PROTOCOLS = "tests/e2e/test_protocol_page.py::test_the_commands_of_the_pages_answer_without_errors"
ENVELOPE = "tests/e2e/test_chariot.py::test_the_page_s_request_has_the_page_s_answer"
GRPC = "tests/e2e/test_grpc.py::test_the_program_in_the_documents_runs"
V1 = "tests/e2e/test_v1.py::test_the_page_s_lines_run"
MOVE = "tests/e2e/test_scaling_page.py::test_a_store_in_use_moves_to_postgresql"
CLICKHOUSE = "tests/e2e/test_scaling_page.py::test_what_is_stored_is_sent_to_clickhouse_too"
STATEMENTS = (
    "tests/extras/clickhouse/test_clickhouse.py::test_the_statements_of_the_page_do_what_it_says"
)
PAGES = "tests/e2e/test_drift.py::test_commands_of_the_pages_are_answered"
MESSAGES = "tests/unit/monitor/watch/test_webhook_messages.py::"
EVALUATION = "tests/unit/monitor/evaluation/"
TRAFFIC = "tests/e2e/test_traffic.py::test_the_commands_of_the_page_try_a_version_and_promote_it"
ELSEWHERE = "tests/e2e/test_elsewhere_page.py::test_"
ROLES = "tests/e2e/test_database_roles.py::test_a_server_that_may_make_no_tables_works"
KEYS = "tests/e2e/test_keys.py::test_the_commands_of_the_page_do_what_it_says"
LIMITS = (
    "tests/e2e/test_key_limits.py::test_the_page_shows_the_commands_and_an_answer_of_the_server"
)
TWO_VERSIONS = (
    "tests/e2e/test_two_versions.py::test_two_replicas_go_to_the_next_version_and_back_under_load"
)
DATASETS = "tests/e2e/test_datasets_page.py::test_the_commands_of_the_page_do_what_it_says"
TABLES = "tests/conformance/test_other_tools.py::test_tables_of_a_running_server_are_read_in_a_line"
SELECTION = "tests/unit/engine/test_select_command.py::test_the_command_of_the_page_selects"
RUN_BY = {
    "SECURITY.md": [],
    "README.md": [
        *[f"sh {HERE}words_of_make_are_there"] * 2,
        *[f"sh {README}"] * 2,
        f"json {README}",
        f"sh {README}",
        f"python {README}",
        f"sh {HERE}an_own_environment_is_installed_by_one_name",
        f"sh {HERE}commands_of_compose_name_its_services_and_secrets",
    ],
    "CODE_OF_CONDUCT.md": [],
    "CONTRIBUTING.md": [],
    "docs/architecture.md": [
        f" {HERE}the_packages_are_drawn_in_their_layers",
        f" {HERE}what_is_drawn_of_a_request_is_there",
        f"toml {HERE}tables_of_model_toml_are_read",
    ],
    "docs/client.md": [
        *[f"python {CLIENT}"] * 2,
        "sh tests/e2e/test_infer_command.py::test_the_command_of_the_page_draws_a_folder",
        *[f"python {CLIENT}"] * 2,
    ],
    "docs/coming-from.md": [],
    "docs/console.md": ["sh tests/e2e/test_console.py::test_the_server_prints_where_the_console_is"],
    "docs/datasets.md": [
        *[f"sh {DATASETS}"] * 2,
        f" {DATASETS}",
        f"sh {SELECTION}",
        f"json {SELECTION}",
        *[f"python {TABLES}"] * 2,
    ],
    "docs/drift.md": [
        f"csv {HERE}files_are_compared_as_the_page_says",
        f"sh {HERE}files_are_compared_as_the_page_says",
        f"sh {PAGES}",
        f"sh {PAGES}",
        "sh tests/unit/monitor/drift/test_schedules.py::test_the_example_of_the_document_is_a_schedule",
        f"text {HERE}an_alarm_is_logged_as_the_page_shows",
    ],
    "docs/drift-reference.md": [
        *[f"sh {PAGES}"] * 3,
        "json tests/unit/monitor/drift/test_alerts.py::test_an_alert_is_signed_with_its_time",
        "python tests/unit/monitor/drift/test_alerts.py::test_an_alert_is_signed_with_its_time",
        f"json {MESSAGES}test_the_body_of_standard_webhooks_has_type_timestamp_and_data",
        f"json {MESSAGES}test_the_page_shows_the_body_of_alertmanager",
    ],
    "docs/label-studio.md": [f"sh {HERE}commands_have_the_options_that_are_written"] * 5,
    "docs/elsewhere.md": [
        f"sh {ELSEWHERE}the_commands_of_the_page_do_what_it_says",
        f"json {ELSEWHERE}the_commands_of_the_page_do_what_it_says",
        f"python {ELSEWHERE}the_hook_of_the_page_logs_what_a_server_of_tensors_answered",
        f"sh {ELSEWHERE}the_commands_of_the_page_do_what_it_says",
        f"yaml {ELSEWHERE}the_logger_of_the_page_sends_its_events_to_a_server_with_keys",
    ],
    "docs/evaluation.md": [
        "sh tests/e2e/test_evaluate_command.py::test_the_command_of_the_page_is_answered",
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {HERE}files_are_evaluated_as_the_page_says",
        f"json {EVALUATION}test_files.py::test_the_record_of_the_document_is_one",
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {EVALUATION}test_schedules.py::test_the_example_of_the_document_is_a_schedule",
    ],
    "docs/evaluation-reference.md": [
        f"json {EVALUATION}test_evaluation_examples.py::test_average_precision_and_rates_are_those_of_the_table",
        f"json {EVALUATION}test_instances.py::test_the_documented_squares_overlap_by_a_third",
        f"json {EVALUATION}test_evaluation_examples.py::test_headlines_are_those_of_the_table",
        f"json {EVALUATION}test_evaluation_examples.py::test_headlines_are_those_of_the_text",
        f"json {EVALUATION}test_evaluation_examples.py::test_headlines_are_those_of_the_text",
        f"json {EVALUATION}test_evaluation_examples.py::test_headlines_are_those_of_the_table",
        "sh tests/e2e/test_evaluations.py::test_the_command_of_the_page_submits_a_job",
        f"json {EVALUATION}test_history.py::test_an_alert_and_its_line_are_as_the_page_shows",
        "python tests/unit/monitor/report/test_page.py::test_documented_lines_write_a_page",
        f"sh {HERE}commands_have_the_options_that_are_written",
    ],
    "docs/first-hour.md": [
        f"{language} {FIRST_HOUR}"
        for language in ("sh", "text", "sh", "sh", "python", *["sh"] * 3, "json", "sh", "sh", "python", "sh")
    ],
    "docs/glossary.md": [],
    "docs/models.md": [
        f" {HERE}the_folders_of_the_page_are_models",
        f"toml {HERE}tables_of_model_toml_are_read",
        f"toml {HERE}tables_of_model_toml_are_read",
        "json tests/e2e/test_models_behind.py::test_the_page_shows_the_answer_and_filters_that_find_it",
        f" {HERE}the_embedding_is_named_as_the_page_shows",
        f"toml {HERE}tables_of_model_toml_are_read",
    ],
    "docs/measured.md": [],
    "docs/performance.md": [],
    "docs/protocols.md": [
        f"json {ENVELOPE}",
        f"json {ENVELOPE}",
        f"sh {PROTOCOLS}",
        f"sh {PROTOCOLS}",
    ],
    "docs/protocols-reference.md": [
        *[f"sh {PROTOCOLS}"] * 3,
        f"sh {GRPC}",
        f"python {GRPC}",
        f"sh {V1}",
        f"json {V1}",
        f"sh {V1}",
        f"sh {V1}",
        "json tests/e2e/test_image_text.py::test_the_question_of_the_page_is_answered",
    ],
    "docs/query.md": [
        "sh tests/e2e/test_query_page.py::test_one_question_in_three_forms_finds_the_one_inference",
        "json tests/unit/store/test_query_page.py::test_the_examples_find_what_the_page_says",
        "json tests/unit/store/test_facets.py::test_the_answer_of_the_page_has_the_shape_of_an_answer",
        "json tests/unit/store/test_query_page.py::test_the_examples_find_what_the_page_says",
    ],
    "docs/upgrading.md": [
        "sh tests/e2e/test_kept_stores.py::test_a_kept_store_is_backed_up_first_and_restored",
        "sh tests/e2e/test_kept_stores.py::test_a_kept_store_is_backed_up_first_and_restored",
        f" {HERE}commands_of_compose_name_its_services_and_secrets",
        f"sh {TWO_VERSIONS}",
        f"text {TWO_VERSIONS}",
        f"sh {TWO_VERSIONS}",
        f"text {TWO_VERSIONS}",
    ],
    "docs/kubernetes.md": [
        "sh tests/unit/test_kubernetes.py::test_the_secrets_of_the_page_are_values_of_their_settings",
        "sh tests/unit/test_kubernetes.py::test_metrics_need_a_key_and_prometheus_has_it",
        "sh tests/unit/test_kubernetes.py::test_the_secrets_of_the_page_are_values_of_their_settings",
        "sh tests/unit/test_kubernetes.py::test_a_job_migrates_the_database_of_the_servers",
        "sh tests/unit/test_kubernetes.py::test_the_page_applies_files_that_are_there",
    ],
    "docs/operations.md": [
        *[f"{language} {HERE}a_server_without_a_container_is_installed_as_the_image" for language in ("sh", "ini")],
        "sh tests/e2e/test_backup.py::test_what_was_acknowledged_before_a_backup_is_restored",
        *["sh tests/unit/store/test_backup.py::test_two_servers_are_restored_beside_their_database"] * 2,
        "json tests/e2e/test_traces.py::test_a_trace_goes_from_a_client_through_server_writer_and_job",
    ],
    "docs/scaling.md": [
        f"sh {MOVE}",
        "sql tests/extras/clickhouse/test_clickhouse.py::test_dropping_partitions_drops_a_month",
        *[f" {HERE}commands_of_compose_name_its_services_and_secrets"] * 2,
        f" {HERE}containers_are_run_from_what_is_there",
        f"sh {CLICKHOUSE}",
        *[f"sql {STATEMENTS}"] * 7,
        "sh tests/e2e/test_scaling_page.py::test_the_archive_is_exported",
    ],
    "docs/security.md": [
        *[f"sh {KEYS}"] * 3,
        f"toml {HERE}settings_of_a_provider_give_roles_as_the_page_says",
        *[f"{language} {LIMITS}" for language in ("sh", "http")],
        "sh tests/unit/engine/test_tls_files.py::test_the_certificates_of_the_page_are_accepted",
        "sh tests/e2e/test_tls.py::test_the_health_check_of_the_page_gets_in",
        f"Caddyfile {HERE}proxies_reach_the_ports_of_the_server",
        f"yaml {HERE}proxies_reach_the_ports_of_the_server",
        f"nginx {HERE}proxies_reach_the_ports_of_the_server",
        f"yaml {HERE}proxies_reach_the_ports_of_the_server",
        f"text {HERE}the_url_of_a_database_with_tls_is_one",
        *[f"{language} {ROLES}" for language in ("sql", "sh", "sql")],
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {HERE}tools_against_the_environment_are_given_what_is_there",
        "sh tests/unit/test_licences.py::test_the_command_of_the_page_lists_every_package",
        *["sh tests/unit/test_signed_releases.py::test_a_release_is_accepted_as_it_was_signed_only"] * 2,
    ],
    "docs/serving.md": [
        f"sh {HERE}commands_have_the_options_that_are_written",
        *[f"sh {TRAFFIC}"] * 4,
    ],
    "docs/speed.md": [
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"sh {HERE}commands_have_the_options_that_are_written",
        f"toml {HERE}tables_of_model_toml_are_read",
        f"sh {HERE}other_builds_of_onnxruntime_take_its_place",
        f"sh {HERE}other_builds_of_onnxruntime_take_its_place",
        f"toml {HERE}tables_of_model_toml_are_read",
    ],
    "docs/team.md": ["sh tests/e2e/test_team_page.py::test_two_teams_share_a_server_as_the_page_says"] * 9,
    "docs/store.md": [
        f"{language} {STORE}"
        for language in ("", "json", "", "sh", "json", *["sh"] * 4, "json", *["sh"] * 3)
    ] + [
        f" {HERE}commands_have_the_options_that_are_written",
    ] + [
        f"json {STORE}", f" {HERE}commands_have_the_options_that_are_written",
        *[f"{language} {STORE}" for language in ("", "json")],
    ] + [
        "json tests/unit/monitor/drift/test_alerts.py::test_the_end_of_a_job_is_delivered_without_a_schedule",
    ] + [
        f"{language} {STORE}" for language in ("sh", "json", *["sh"] * 3)
    ],
    "sample_models/README.md": [],
    "sample_models/images/README.md": [],
    "sample_models/shapes-classifier/README.md": [TRAINING],
    "sample_models/shapes-detector/README.md": [TRAINING],
    "sample_models/shapes-image-text/README.md": [f" {HERE}prompts_are_answered_as_the_page_shows", TRAINING],
    "sample_models/shapes-segmenter/README.md": [TRAINING],
    "sample_models/ships-oriented-detector/README.md": [TRAINING],
    "sample_models/training/README.md": [TRAINING],
}  # fmt: skip
"""The tests of the blocks of each page, in their order, behind each block's language."""
