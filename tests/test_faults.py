"""Every kind of fault that people reported of rotary models: where the right value is held, and what no test held yet.

`KINDS` says for each kind which tests hold it. What follows there tries odd inputs on every shape of network that
could have the fault, since a fault that is mended for one input is not mended.
"""

import ast
import copy
import itertools
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from test_training import RECIPE, single  # noqa: F401 - read by the fixture `settings`
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask
from transformers import DynamicCache, EncoderDecoderModel, StaticCache
from variants import vivid

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerModel, library_version
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.losses import regression_loss
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary

TESTS = Path(__file__).parent
TOLERANCE = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "vocab_size": 90,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
V2 = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}
WRITES = {"is_decoder": True}
DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "max_position_embeddings": 8,
}
YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}, "max_position_embeddings": 8}
# every way in which a network's numbers may come about
SHAPES = {
    "v1": {},
    "English": {"rotary_value": True},
    "turned back": {"rotary_value": "relative"},
    "half turned": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "V2": V2,
    "V2, narrow": {**V2, "embedding_size": 8},
    "causal": WRITES,
    "prefix": {**WRITES, "attention_pattern": "prefix"},
    "linear": {"attention_kind": "linear"},
    "linear, causal": {**WRITES, "attention_kind": "linear"},
    "linear, random": {"attention_kind": "linear", "feature_map": "favor"},
    "both kinds": {"attention_kind": ["linear", "softmax"]},
    "sinusoidal": {"position_kind": "sinusoidal"},
    "learned": {"position_kind": "learned"},
    "no positions": {"position_kind": "none"},
    "dynamic": DYNAMIC,
    "dynamic, causal": {**DYNAMIC, **WRITES},
    "yarn": YARN,
    "log n": {"score_scaling": "log_n", "max_position_embeddings": 8},
    "window": {"attention_window": 4},
}
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForCausalLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForPreTraining",
    "ForSentenceEmbedding",
)
# how pads are gone about: left out, run by the fused kernel, run by the formula
ROADS = {"left out": ("sdpa", True), "fused": ("sdpa", False), "formula": ("eager", False)}
LENGTH = 9
# whole, begins late, ends early with a hole
MASK = torch.ones(3, LENGTH, dtype=torch.long)
MASK[1, :4] = 0
MASK[2, 6:] = MASK[2, 2] = 0
SEEN = MASK.bool()

every_shape = pytest.mark.parametrize("shape", SHAPES)
every_head = pytest.mark.parametrize("head", HEADS)
every_road = pytest.mark.parametrize("road", ROADS)


def config_of(shape, **facts):
    return HFRoFormerConfig(**{**SIZES, **SHAPES[shape], **facts})


def built(shape, head="Model", road="left out", **facts):
    backend, padding_free = ROADS[road]
    kind = getattr(hf_roformer, f"HFRoFormer{head}")
    model = vivid(kind(config_of(shape, attn_implementation=backend, **facts)))
    model.padding_free = padding_free
    return model


def some_ids(rows=3, length=LENGTH):
    return torch.randint(1, 90, (rows, length))


def read(model, input_ids=None, **inputs):
    """Return the states of a body, without a cache."""
    return model(input_ids, use_cache=False, **inputs).last_hidden_state


# where each kind is held

KINDS = {
    1: (
        "frequencies rounded before they are multiplied",
        """test_rotary.py: test_angles_are_exact_to_a_ten_millionth_at_every_position_to_131072
        test_a_cast_of_the_weights_rounds_no_angle test_a_default_dtype_of_half_precision_rounds_no_angle
        test_building_on_the_meta_device_and_loading_leaves_every_angle_right
        test_a_model_that_is_read_to_another_device_brings_no_table_of_the_old_one
        test_faults.py: test_the_default_dtype_changes_no_answer""",
    ),
    2: (
        "positions counted in half precision",
        """test_rotary.py: test_a_wrapper_that_makes_float_ranges_half_precision_merges_no_positions
        test_bfloat16_tells_neighbouring_positions_apart
        test_faults.py: test_ranges_in_half_precision_change_no_answer test_integers_of_any_type_mean_the_same""",
    ),
    4: (
        "angles left on the meta device",
        """test_loading.py: test_a_model_built_on_meta_comes_to_life_by_init_weights
        test_assigning_a_state_dict_leaves_nothing_on_meta
        test_faults.py: test_a_network_born_on_meta_comes_to_life_whichever_way""",
    ),
    6: (
        "a table that the file lacks",
        """test_loading.py: test_a_file_without_the_table_gives_exact_angles_in_any_dtype
        test_a_wrong_table_in_the_file_is_not_believed
        test_family.py: test_the_table_of_an_old_file_is_not_believed""",
    ),
    7: (
        "a long text changes later answers",
        """test_modeling.py: test_no_answer_depends_on_what_ran_before
        test_rope_scaling.py: test_a_long_text_changes_no_later_answer
        test_faults.py: test_no_answer_depends_on_what_ran_before_or_on_how_it_was_copied
        test_a_dry_run_without_numbers_runs_and_leaves_nothing_behind test_the_default_device_changes_no_answer
        test_threads.py: test_threads_with_different_lengths_get_what_one_thread_gets""",
    ),
    10: (
        "another maximum length at load",
        """test_loading.py: test_the_length_given_at_load_changes_no_answer
        test_a_published_folder_loads_silently_with_a_longer_length
        test_faults.py: test_a_length_given_at_load_is_taken_whatever_the_network""",
    ),
    12: (
        "halves turned in place of neighbours",
        """test_rotary.py: test_turning_is_multiplying_by_a_complex_number test_neighbouring_channels_make_a_pair
        test_modeling.py: test_a_head_answers_as_the_built_in_one_with_the_same_weights
        test_faults.py: test_halves_turn_like_neighbours_once_rows_are_permuted_and_only_then""",
    ),
    13: (
        "sines repeated as blocks",
        """test_rotary.py: test_neighbouring_channels_make_a_pair
        test_the_published_worked_row_comes_out_to_its_printed_digits
        test_faults.py: test_a_unit_vector_turns_within_its_pair""",
    ),
    14: (
        "an odd width of a head",
        """test_configuration.py: test_what_cannot_be_built_is_refused_with_its_numbers_and_a_remedy
        test_a_field_set_after_building_is_checked_when_a_model_is_built
        test_faults.py: test_a_width_that_no_pairs_fill_is_refused_with_both_numbers""",
    ),
    16: (
        "angles that widen what they turn",
        """test_rotary.py: test_the_turn_returns_the_dtype_of_its_input
        test_modeling.py: test_autocast_runs_on_both_backends
        test_numeric_edges.py: test_half_precision_stays_near_the_full_one_by_any_road
        test_losses.py: test_no_loss_is_summed_in_half_precision_under_autocast
        test_sentence_embedding.py: test_autocast_rounds_no_cosine
        test_faults.py: test_embeddings_of_another_float_type_are_read_in_that_of_the_model""",
    ),
    17: (
        "a graph that breaks or recompiles",
        """test_modeling.py: test_one_compiled_graph_serves_masks_positions_and_lengths
        test_linear_attention.py: test_one_compiled_graph_serves_every_length
        test_rope_scaling.py: test_a_compiled_graph_computes_the_same
        test_position_kinds.py: test_a_compiled_graph_and_an_exported_one_compute_the_same
        test_local_attention.py: test_a_compiled_graph_computes_the_same""",
    ),
    18: (
        "wrappers that cast or broadcast angles",
        """test_rotary.py: test_a_cast_of_the_weights_rounds_no_angle test_half_and_back_rounds_no_angle
        test_the_state_dict_carries_nothing_of_the_rotation
        test_processes.py: test_each_of_two_processes_holds_half_of_the_parameters_and_learns_as_the_whole
        test_two_processes_have_the_losses_and_weights_of_one_at_the_same_global_batch""",
    ),
    19: (
        "operations that a library dropped",
        """test_remote_code.py: test_a_shipped_file_imports_only_what_every_stranger_has
        test_faults.py: test_shipped_files_name_nothing_private_of_the_libraries""",
    ),
    21: (
        "generation that forgets its cache",
        """test_generation.py: test_after_the_prompt_each_step_sees_one_token
        test_both_names_of_the_cache_are_one test_embeddings_start_a_text_as_their_ids_do
        test_linear_attention.py: test_generating_with_a_cache_writes_what_it_writes_without
        test_prefix.py: test_embeddings_start_a_text_as_their_ids_do
        test_faults.py: test_after_the_prompt_each_step_sees_one_token_and_segments_follow""",
    ),
    23: (
        "a tokenizer that cannot be copied",
        """test_tokenization.py: test_a_copy_gives_the_same_ids_and_keeps_its_settings
        test_a_worker_process_gives_the_same_ids_and_the_same_fingerprint
        test_a_pair_is_numbered_0_and_1_and_a_single_text_0 test_words_are_not_learnt_and_characters_are
        test_threads.py: test_workers_of_a_loader_read_what_one_process_reads
        test_a_tokenizer_serves_many_threads""",
    ),
    24: (
        "an older library",
        "test_faults.py: test_an_older_library_is_named_with_the_one_that_is_needed",
    ),
    25: (
        "another variant loads and talks nonsense",
        """test_loading.py: test_a_v2_file_under_a_v1_config_is_refused
        test_a_missing_body_parameter_is_named_not_made_up
        test_weight_files.py: test_the_wrong_variant_is_guessed_from_the_keys
        test_family.py: test_weights_of_the_first_version_under_a_config_of_the_second_are_refused""",
    ),
    26: (
        "weights of a BERT",
        """test_surgery.py: test_every_tensor_of_a_masked_lm_arrives_and_only_the_positions_stay_behind
        test_the_head_of_next_sentences_and_the_pooler_are_left_behind_by_name
        test_an_unknown_weight_is_named_and_nothing_is_written
        test_a_head_that_reads_several_rows_at_once_is_drawn_over_a_body_that_answers_alike
        test_without_positions_bert_and_roformer_answer_alike""",
    ),
    27: (
        "private helpers of the library",
        "test_faults.py: test_shipped_files_name_nothing_private_of_the_libraries",
    ),
    29: (
        "an export of one length",
        """test_modeling.py: test_an_exported_head_serves_other_batches_and_lengths
        test_an_exported_graph_tells_packed_rows_apart_from_two_columns_on
        test_linear_attention.py: test_an_exported_graph_serves_other_batches_and_lengths
        test_position_kinds.py: test_a_compiled_graph_and_an_exported_one_compute_the_same""",
    ),
    32: (
        "the encoder-decoder wrapper",
        """test_generation.py: test_the_encoder_decoder_wrapper_generates_the_same_with_a_cache_as_without
        test_faults.py: test_every_pair_of_encoder_and_decoder_writes_the_same_with_a_cache_as_without""",
    ),
    33: (
        "pooling that reads a pad",
        """test_modeling.py: test_padding_changes_no_real_answer test_no_pooling_reads_a_pad
        test_a_pooler_reads_the_first_real_token
        test_sentence_embedding.py: test_padding_on_either_side_changes_no_vector
        test_family.py: test_a_published_folder_answers_as_the_formulas_padded_on_either_side_and_packed""",
    ),
    36: (
        "what stands under a pad",
        """test_modeling.py: test_junk_embeddings_under_pads_reach_no_real_token
        test_faults.py: test_nothing_that_stands_under_a_pad_reaches_a_real_token_or_a_gradient
        test_ids_that_no_table_has_may_stand_under_pads_by_any_road
        test_nothing_that_an_encoder_left_under_its_pads_reaches_a_decoder""",
    ),
    37: (
        "real tokens that depend on pads",
        """test_modeling.py: test_padding_changes_no_real_answer
        test_linear_attention.py: test_padding_changes_no_real_answer
        test_padding_free.py: test_a_head_answers_the_same_and_learns_the_same
        test_family.py: test_a_published_folder_answers_as_the_formulas_padded_on_either_side_and_packed
        test_numeric_edges.py: test_a_row_answers_alone_as_in_any_batch
        test_faults.py: test_pads_without_a_mask_are_told_of""",
    ),
    39: (
        "what a mask of four dimensions means",
        """test_modeling.py: test_every_spelling_of_a_mask_means_the_same
        test_the_flex_backend_answers_as_the_formula_with_every_kind_of_mask test_a_soft_additive_bias_is_added
        test_faults.py: test_a_mask_that_holds_no_number_is_refused
        test_what_is_no_mask_is_named_by_every_backend test_a_paged_backend_without_pages_masks_as_the_plain_one""",
    ),
    40: (
        "masks of three dimensions",
        """test_modeling.py: test_every_spelling_of_a_mask_means_the_same test_a_mask_that_cannot_be_meant_is_refused
        test_linear_attention.py: test_what_sums_cannot_do_is_refused_in_words""",
    ),
    42: (
        "arguments that nobody reads",
        """test_modeling.py: test_a_misspelt_argument_is_refused_and_the_nearest_named
        test_reversed_positions_under_one_sequence_id_mirror_the_distances
        test_faults.py: test_what_is_no_tensor_is_named
        test_a_position_that_is_no_number_is_refused_but_under_a_pad test_a_mask_is_not_taken_for_positions
        test_places_on_two_axes_are_numbers_in_a_tensor
        test_an_argument_that_nothing_reads_is_refused_by_every_head
        test_a_field_that_is_nearly_one_of_ours_is_told_of""",
    ),
    43: (
        "boundaries sought at position 0",
        """test_modeling.py: test_packed_sequences_do_not_see_each_other
        test_a_variable_length_kernel_gives_packed_rows_what_the_mask_gives
        test_linear_attention.py: test_packed_sequences_answer_as_they_do_alone
        test_rotary_value.py: test_packing_changes_nothing_whether_positions_start_over_or_run_on
        test_faults.py: test_sequences_may_be_numbered_by_hashes""",
    ),
    44: (
        "a folder without its code",
        """test_remote_code.py: test_a_stranger_gets_the_same_answers
        test_a_saved_folder_holds_the_packages_own_files_to_the_byte test_the_stranger_used_nothing_of_the_package
        test_a_config_saved_alone_and_a_class_of_a_notebook_bring_the_code_of_every_class_that_they_name""",
    ),
    46: (
        "a second save",
        """test_remote_code.py: test_a_saved_folder_names_its_code_the_same_way_each_time
        test_the_third_generation_loads_under_every_auto_class_and_answers_alike""",
    ),
    48: (
        "a checkpoint of custom code",
        """test_remote_code.py: test_a_trainers_checkpoint_needs_nothing_else
        test_a_stranger_takes_up_the_training_where_it_stopped""",
    ),
    50: (
        "scores that come back untied",
        """test_loading.py: test_tied_scores_stay_tied_and_are_stored_once
        test_a_resized_vocabulary_stays_tied_through_a_file test_a_vocabulary_is_not_cut_below_its_pad
        test_untied_scores_are_stored_and_come_back
        test_faults.py: test_scores_stay_tied_through_every_copy_and_cast""",
    ),
    52: (
        "pipelines",
        """test_faults.py: test_pipelines_answer_each_text_in_a_batch_as_alone_and_take_long_ones
        test_questions.py: test_answers_and_their_absence_are_learnt_and_the_saved_folder_gives_them_again""",
    ),
    53: (
        "adapters",
        """test_adapters.py: test_the_targets_are_linear_layers_of_the_body_alone
        test_an_adapter_around_the_embeddings_is_read_learns_and_comes_back
        test_an_adapted_run_leaves_an_adapter_and_a_plain_model_that_answer_alike
        test_faults.py: test_the_usual_names_of_adapters_are_there_and_no_angle_is_trainable""",
    ),
    55: (
        "sentence-transformers",
        "test_faults.py: test_sentence_transformers_embed_a_folder_alone_as_in_a_batch",
    ),
    56: (
        "values read while building",
        """test_rotary.py: test_building_on_the_meta_device_and_loading_leaves_every_angle_right
        test_faults.py: test_every_head_is_built_and_run_on_meta
        test_a_network_born_on_meta_comes_to_life_whichever_way""",
    ),
    57: (
        "code that differs from the package's",
        "test_remote_code.py: test_a_saved_folder_holds_the_packages_own_files_to_the_byte",
    ),
    60: (
        "labels of odd types and shapes",
        """test_losses.py: test_class_labels_of_any_integer_dtype_cost_the_same
        test_multi_label_targets_of_any_dtype_cost_what_floats_do test_an_answer_outside_the_row_teaches_nothing
        test_one_number_a_row_is_refused_where_two_are_predicted test_a_byte_of_156_is_a_label_like_any_other
        test_building_and_calling_a_head_leaves_the_caller_s_config_as_it_was
        test_pretraining_head.py: test_labels_of_any_integer_dtype_cost_the_same
        test_sentence_embedding.py: test_labels_of_any_integer_dtype_cost_the_same
        test_faults.py: test_a_number_that_is_none_is_refused_as_a_label test_labels_without_a_text_are_refused""",
    ),
    62: (
        "processes that write the same",
        """test_processes.py: test_one_process_writes
        test_resume.py: test_a_second_run_in_the_folder_is_refused_and_a_dead_one_does_not_block
        test_held_folders.py:
            test_a_second_run_in_the_folder_is_refused_before_it_reads_anything_and_may_begin_after_the_first
            test_a_run_holds_its_folder_until_it_has_written_its_card_and_published""",
    ),
    63: (
        "a resumed run that differs",
        """test_resume.py: test_a_resumed_run_ends_with_the_bits_of_a_whole_one
        test_a_run_killed_three_times_ends_with_the_bits_of_a_whole_one
        test_pretraining.py: test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped
        test_adapters.py: test_an_adapted_run_resumes_to_the_same_bits""",
    ),
    64: (
        "a half-written checkpoint",
        """test_resume.py: test_a_checkpoint_that_is_not_whole_is_left_out_by_name_and_refused_by_path
        test_without_a_whole_checkpoint_there_is_nothing_to_resume
        test_a_best_network_that_is_not_whole_is_left_out_by_name_and_another_is_chosen""",
    ),
    66: (
        "metrics that are downloaded",
        """test_metrics.py: test_our_metrics_are_loaded_by_name_and_used_as_those_of_the_hub_are
        test_training.py: test_a_metric_that_nobody_gives_is_refused_before_a_step_is_taken
        test_tasks.py: test_each_task_is_learnt_and_its_folder_is_read_by_the_code_on_its_card
        test_laws.py: test_a_shell_block_of_the_readme_runs_in_a_short_form""",
    ),
    67: (
        "parameters without a gradient",
        """test_losses.py: test_every_trainable_parameter_gets_a_gradient_in_a_normal_step
        test_a_decoder_with_an_encoder_s_states_trains_its_cross_attention_too
        test_faults.py: test_every_parameter_of_every_network_learns""",
    ),
    68: (
        "what a placement may not cut",
        """test_loading.py: test_an_automatic_placement_never_cuts_a_layer
        test_processes.py: test_every_rule_of_the_tensor_parallel_plan_names_a_projection
        test_faults.py: test_the_blocks_that_may_not_be_cut_are_there_and_all_parameters_learn""",
    ),
    69: (
        "an upload that fails",
        "test_faults.py: test_weights_are_on_disk_when_an_upload_fails",
    ),
    70: (
        "losses in a graph",
        """test_losses.py: test_a_head_with_labels_compiles_as_one_graph
        test_labelled_scores.py: test_a_graph_that_may_not_look_at_labels_scores_all""",
    ),
    72: (
        "sums over keys that overflow",
        """test_linear_attention.py: test_half_precision_is_finite_and_near_at_32k_tokens
        test_autocast_leaves_the_sums_in_float32""",
    ),
    75: (
        "a rotated divisor",
        """test_linear_attention.py: test_the_divisor_is_not_rotated test_the_body_computes_the_formula
        test_shifting_every_position_changes_nothing""",
    ),
    76: (
        "a mask that makes linear attention NaN",
        """test_linear_attention.py: test_a_row_that_sees_nothing_stays_finite_and_leaves_the_others_alone
        test_sentence_embedding.py:
            test_a_row_without_a_token_has_the_vector_0_and_leaves_every_gradient_a_number
        test_faults.py: test_nothing_that_stands_under_a_pad_reaches_a_real_token_or_a_gradient""",
    ),
    77: (
        "linear taken for softmax",
        """test_linear_attention.py: test_softmax_weights_become_linear_only_with_a_warning_that_names_the_choice
        test_a_built_model_is_not_made_linear_by_its_config test_a_saved_model_answers_the_same_bits""",
    ),
    78: (
        "memory with the square of the length",
        """test_linear_attention.py: test_no_tensor_of_a_forward_grows_with_the_square_of_the_length
        test_blocked_attention.py: test_no_training_step_with_dropout_stores_all_weights
        test_modeling.py: test_the_flex_backend_answers_as_the_formula_with_every_kind_of_mask
        test_faults.py: test_no_tensor_of_the_default_holds_every_pair_of_tokens""",
    ),
    79: (
        "yarn that ignores its factor",
        """test_rope_scaling.py: test_the_written_factor_counts_not_the_quotient_of_the_lengths
        test_frequencies_and_factor_are_those_of_the_library""",
    ),
    81: ("yarn's two scales", "test_rope_scaling.py: test_the_attention_factor_of_yarn_is_read_as_written"),
    82: (
        "older and incomplete spellings",
        """test_rope_scaling.py: test_a_scaling_without_sense_is_refused_with_its_numbers
        test_configuration.py: test_old_and_new_spellings_of_a_scaling_mean_the_same
        test_a_null_scaling_of_an_old_file_is_no_scaling
        test_a_scaling_told_at_load_or_later_is_one_of_the_rotation_that_was_trained
        test_the_older_names_of_a_rotation_are_read_and_set_at_load_and_later""",
    ),
    84: (
        "one number for two lengths",
        """test_rope_scaling.py: test_a_trained_length_beside_the_scaling_is_read_and_two_are_refused
        test_a_row_answers_in_a_batch_as_it_does_alone
        test_faults.py: test_the_length_of_a_cache_changes_no_short_answer""",
    ),
}


def places(told):
    """Return (file, test) of each test that a text names: files end in a colon, and their tests follow."""
    file, found = "", []
    for word in told.split():
        if word.endswith(":"):
            file = word[:-1]
        else:
            found.append((file, word))
    return found


def test_every_test_that_a_kind_names_is_there():
    there = {
        (path.name, node.name)
        for path in TESTS.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = {number: places(told) for number, (_, told) in KINDS.items()}
    assert len(KINDS) == 55
    assert all(named.values())
    assert [place for found in named.values() for place in found if place not in there] == []


# numbers of any type


def told(ids, dtype=torch.long):
    """Return everything that may be told of tokens, in one type."""
    packs = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1]] * 3)
    positions = torch.arange(30, 30 + LENGTH)[None].expand(3, -1)
    everything = {"input_ids": ids, "attention_mask": MASK, "token_type_ids": packs}
    everything |= {"sequence_ids": packs, "position_ids": positions}
    return {name: value.to(dtype) for name, value in everything.items()}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16], ids=str)
@every_shape
@torch.no_grad()
def test_integers_of_any_type_mean_the_same(shape, dtype):
    ids = some_ids()
    for road in ("left out", "formula"):
        model = built(shape, road=road)
        wanted = read(model, **told(ids))
        assert torch.equal(read(model, **told(ids, dtype)), wanted)
        for mixed in itertools.islice(told(ids), 1, None):
            assert torch.equal(read(model, **{**told(ids), mixed: told(ids, dtype)[mixed]}), wanted), mixed


@every_shape
@torch.no_grad()
def test_a_byte_counts_no_position_from_the_start_again(shape):
    """One more than 255 is 0 in a byte."""
    model, ids = built(shape, **({"max_position_embeddings": 300} if shape == "learned" else {})), some_ids(rows=1)
    positions = torch.arange(247, 256)[None]
    assert torch.equal(read(model, ids, position_ids=positions.byte()), read(model, ids, position_ids=positions))
    short = torch.arange(119, 128)[None]
    assert torch.equal(read(model, ids, position_ids=short.to(torch.int8)), read(model, ids, position_ids=short))


@every_shape
@torch.no_grad()
def test_booleans_and_floats_are_read_where_they_can_mean_one_thing(shape):
    model, ids = built(shape), some_ids()
    plain = told(ids)
    wanted = read(model, **plain)
    for name in ("attention_mask", "token_type_ids", "sequence_ids"):
        assert torch.equal(read(model, **{**plain, name: plain[name].bool()}), wanted), name
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(read(model, **{**plain, "attention_mask": MASK.to(dtype)}), wanted)
    for name in ("input_ids", "token_type_ids", "sequence_ids"):
        with pytest.raises(ValueError, match=f"{name} are torch.float32: give integers"):
            read(model, **{**plain, name: plain[name].float()})


@every_shape
@torch.no_grad()
def test_views_and_expanded_tensors_mean_what_they_show(shape):
    ids = some_ids()
    wide, across = torch.stack((ids, ids + 1), dim=-1).flatten(1), ids.t().contiguous()
    one = torch.ones(1, LENGTH, dtype=torch.long)
    one[:, 7:] = 0
    for road in ROADS:
        model = built(shape, road=road)
        wanted = read(model, ids, attention_mask=one.repeat(3, 1))
        shown = {"attention_mask": one.expand(3, -1), "token_type_ids": torch.zeros(1, 1).long().expand(3, LENGTH)}
        for view in (wide[:, ::2], across.t()):
            assert not view.is_contiguous()
            torch.testing.assert_close(read(model, view, **shown)[:, :7], wanted[:, :7], **TOLERANCE)
        embeds = model.embeddings.word_embeddings(ids)
        turned = embeds.transpose(0, 2).contiguous().transpose(0, 2)
        got = read(model, inputs_embeds=turned, **shown)
        torch.testing.assert_close(got[:, :7], wanted[:, :7], **TOLERANCE)


@torch.no_grad()
def test_embeddings_of_another_float_type_are_read_in_that_of_the_model():
    for shape in ("v1", "V2", "linear", "sinusoidal"):
        for dtype in (torch.bfloat16, torch.float32):
            model = built(shape).to(dtype)
            embeds = torch.randn(2, 5, 16)
            wanted = read(model, inputs_embeds=embeds.to(dtype))
            assert wanted.dtype == dtype
            for other in (torch.float32, torch.float64):
                assert torch.equal(read(model, inputs_embeds=embeds.to(other)), wanted)


@torch.no_grad()
def test_sequences_may_be_numbered_by_hashes():
    ids = some_ids(rows=8)
    plain = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 2, 2]]).expand(8, -1)
    hashes = torch.tensor([2**62, -(2**63), 2**63 - 1])[plain]
    for shape, road in itertools.product(("v1", "causal", "linear", "window"), ROADS):
        model = built(shape, road=road)
        wanted = read(model, ids, sequence_ids=plain)
        torch.testing.assert_close(read(model, ids, sequence_ids=hashes), wanted, **TOLERANCE)


# pads


JUNK = (float("nan"), float("inf"), float("-inf"), 3e38, -1e20)


def learn(model, inputs):
    """Return states, and the gradients that the real tokens alone ask for."""
    model.zero_grad()
    states = read(model, **inputs)
    states[SEEN].sin().sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return states.detach()[SEEN], {name: gradient.clone() for name, gradient in found.items()}


@every_road
@every_shape
def test_nothing_that_stands_under_a_pad_reaches_a_real_token_or_a_gradient(shape, road):
    model = built(shape, road=road)
    width = model.config.embedding_size
    embeds = torch.randn(3, LENGTH, width)
    wanted, gradients = learn(model, {"inputs_embeds": embeds, "attention_mask": MASK})
    for junk in JUNK:
        dirty = embeds.masked_fill(~SEEN[..., None], junk)
        got, found = learn(model, {"inputs_embeds": dirty, "attention_mask": MASK})
        torch.testing.assert_close(got, wanted, **TOLERANCE)
        for name, gradient in gradients.items():
            # the segment under a pad is nobody's, but its embedding is read
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4, msg=f"{junk} {name}")


@every_road
@every_shape
def test_junk_in_the_pads_row_of_a_table_reaches_no_real_token(shape, road):
    model, ids = built(shape, road=road), some_ids().masked_fill(~SEEN, 0)
    wanted, _ = learn(model, {"input_ids": ids, "attention_mask": MASK})
    for junk in JUNK:
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[0] = junk
        got, found = learn(model, {"input_ids": ids, "attention_mask": MASK})
        torch.testing.assert_close(got, wanted, **TOLERANCE)
        assert all(gradient.isfinite().all() for gradient in found.values())


@every_road
@every_shape
@torch.no_grad()
def test_ids_that_no_table_has_may_stand_under_pads_by_any_road(shape, road):
    model, ids = built(shape, road=road), some_ids()
    wanted = read(model, ids, attention_mask=MASK)[SEEN]
    for wrong in (-100, -1, 90, 10**9):
        dirty, kinds = ids.masked_fill(~SEEN, wrong), torch.zeros_like(ids).masked_fill(~SEEN, wrong)
        kinds = kinds if shape != "prefix" else None
        got = read(model, dirty, attention_mask=MASK, token_type_ids=kinds)[SEEN]
        torch.testing.assert_close(got, wanted, **TOLERANCE)
        with pytest.raises(ValueError, match=f"input_ids holds {wrong}, but vocab_size is 90"):
            read(model, dirty)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_nothing_that_an_encoder_left_under_its_pads_reaches_a_decoder(backend):
    facts = {"add_cross_attention": True, "attn_implementation": backend, **WRITES}
    model, ids = vivid(HFRoFormerForCausalLM(config_of("v1", **facts))), some_ids()
    encoded = torch.randn(3, LENGTH, 16)
    spellings = (MASK, SEEN, SEEN[:, None, :].expand(-1, LENGTH, -1))
    wanted = model(ids, encoder_hidden_states=encoded, encoder_attention_mask=MASK).logits
    for junk, mask in itertools.product(JUNK[:3], spellings):
        dirty = encoded.masked_fill(~SEEN[..., None], junk)
        got = model(ids, encoder_hidden_states=dirty, encoder_attention_mask=mask).logits
        torch.testing.assert_close(got, wanted, **TOLERANCE)


@torch.no_grad()
def test_pads_without_a_mask_are_told_of(said):
    model = built("v1", pad_token_id=7)
    transformers.logging.get_logger("transformers.modeling_utils").warning_once.cache_clear()
    model(torch.tensor([[5, 6, 8]]))
    model(torch.tensor([[5, 6, 7]]), attention_mask=torch.tensor([[1, 1, 0]]))
    assert said == []
    model(torch.tensor([[5, 6, 7]]))
    assert any("attention_mask" in line and "padded" in line for line in said)


@pytest.mark.parametrize("shape", [(3, LENGTH), (3, LENGTH, LENGTH), (3, 1, LENGTH, LENGTH), (1, 1, 1, LENGTH)])
def test_a_mask_that_holds_no_number_is_refused(shape):
    mask = torch.ones(shape) if len(shape) == 2 else torch.zeros(shape)
    mask[..., 0] = float("nan")
    with pytest.raises(ValueError, match=r"holds nan"):
        built("v1")(some_ids(), attention_mask=mask)


@every_shape
@torch.no_grad()
def test_a_paged_backend_without_pages_masks_as_the_plain_one(shape):
    ids = some_ids()
    model = built(shape, road="formula")
    wanted = [read(model, ids, attention_mask=mask) for mask in (None, MASK)]
    model.set_attn_implementation("paged|eager")
    for mask, states in zip((None, MASK), wanted, strict=True):
        assert torch.equal(read(model, ids, attention_mask=mask), states)


FLEXIBLE = "BlockMask: give a tensor, or load with attn_implementation='flex_attention'"


def test_what_is_no_mask_is_named_by_every_backend():
    block = create_block_mask(lambda row, head, query, key: query >= key, 3, 2, LENGTH, LENGTH, device="cpu")
    shown = SEEN[:, None, None, :].expand(-1, -1, LENGTH, -1)
    for backend in ("sdpa", "eager"):
        model = vivid(HFRoFormerModel(config_of("v1", attn_implementation=backend)))
        for wrong, name in (({"full_attention": shown}, "dict"), ("causal", "str"), (True, "bool")):
            with pytest.raises(ValueError, match=f"attention_mask is a {name}: give a tensor"):
                model(some_ids(), attention_mask=wrong)
        with pytest.raises(ValueError, match=r"attention_mask is a torch.complex64: give a tensor"):
            model(some_ids(), attention_mask=MASK.to(torch.complex64))
        with pytest.raises(ValueError, match=f"{backend} takes no {FLEXIBLE}"):
            model(some_ids(), attention_mask=block)
        decoder = HFRoFormerModel(config_of("causal", add_cross_attention=True, attn_implementation=backend))
        with pytest.raises(ValueError, match=f"{backend} takes no {FLEXIBLE}"):
            decoder(some_ids(), encoder_hidden_states=torch.randn(3, LENGTH, 16), encoder_attention_mask=block)


# positions


NOWHERE = (float("nan"), float("inf"), float("-inf"))


# a table has whole positions alone, and says so
@every_road
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "learned"])
@torch.no_grad()
def test_a_position_that_is_no_number_is_refused_but_under_a_pad(shape, road):
    model, ids = built(shape, road=road), some_ids()
    places = torch.arange(LENGTH).double().expand(3, -1).contiguous()
    wanted = read(model, ids, attention_mask=MASK, position_ids=places)[SEEN]
    for junk in NOWHERE:
        got = read(model, ids, attention_mask=MASK, position_ids=places.masked_fill(~SEEN, junk))[SEEN]
        torch.testing.assert_close(got, wanted, **TOLERANCE)
        with pytest.raises(ValueError, match=f"position_ids hold {junk}: give each token a place"):
            read(model, ids, attention_mask=MASK, position_ids=places.index_fill(1, torch.tensor([4]), junk))


def test_a_mask_is_not_taken_for_positions():
    for facts in ({}, {"position_kind": "learned"}, {"attention_kind": "linear"}):
        with pytest.raises(ValueError, match=r"position_ids are torch.bool and number nothing"):
            HFRoFormerModel(HFRoFormerConfig(**SIZES, **facts))(some_ids(), position_ids=SEEN)


def test_places_on_two_axes_are_numbers_in_a_tensor():
    model, places = HFRoFormerModel(HFRoFormerConfig(**SIZES, rope_axes=2)), torch.zeros(3, LENGTH, 2)
    wrong = {"is a list: give a tensor": places.tolist(), "torch.bool": places.bool(), "hold nan": places * NOWHERE[0]}
    wrong["are torch.complex64: give integers"] = places.to(torch.complex64)
    for message, told in wrong.items():
        with pytest.raises(ValueError, match=message):
            model(some_ids(), position_ids=told)


# arguments


@every_head
def test_an_argument_that_nothing_reads_is_refused_by_every_head(head):
    model = built("v1", head)
    ids = some_ids().reshape(3, 1, LENGTH) if head == "ForMultipleChoice" else some_ids()
    wrong = {
        "attenton_mask": "attention_mask",
        "positions_ids": "position_ids",
        "sequence_id": "sequence_ids",
        "token_types_ids": "token_type_ids",
        "input_embeds": "inputs_embeds",
        "output_hidden_state": "output_hidden_states",
        "cu_seqlens_q": "cu_seq_lens_q",
        "head_mask": "attention_mask",
        "past_key_value": "past_key_values",
    }
    if head == "Model":
        wrong["labels"] = ""
    for name, near in wrong.items():
        with pytest.raises(TypeError, match=f"takes no argument '{name}'; the nearest is '{near}"):
            model(ids, **{name: torch.ones(3, LENGTH)})


def test_what_is_no_tensor_is_named():
    model, ids = built("causal", "ForCausalLM"), some_ids()
    for name, plain in told(ids).items():
        rest = {other: value for other, value in told(ids).items() if other != name}
        for wrong in (plain.tolist(), plain.numpy()):
            with pytest.raises(ValueError, match=f"{name} is a (list|ndarray): give a tensor"):
                model(**rest, **{name: wrong})
    with pytest.raises(ValueError, match="the cache is a tuple, as in older libraries: give a DynamicCache"):
        model(ids, **{CACHE_ARGUMENT: ((torch.zeros(3, 2, 4, 8),) * 2,) * 2})


def test_a_field_that_is_nearly_one_of_ours_is_told_of(caplog):
    for wrong, near in {
        "num_hiden_layers": "num_hidden_layers",
        "atention_kind": "attention_kind",
        "hidden_sizes": "hidden_size",
        "rotary_values": "rotary_value",
        "layer_norm_epsilon": "layer_norm_eps",
    }.items():
        caplog.clear()
        HFRoFormerConfig(**{wrong: 4})
        assert caplog.messages == [f"{wrong} is no field of a RoFormer and changes nothing: is {near} meant?"]
    caplog.clear()
    known = {"sep_token_id": 3, "unk_token_id": 1, "num_labels": 4, "directionality": "bidi", "torch_dtype": "float32"}
    HFRoFormerConfig(**known, hidden_dropout=0.1, rope_theta=10000.0, rope_scaling=None)
    assert caplog.messages == []


def test_labels_without_a_text_are_refused():
    for head in ("ForCausalLM", "ForMaskedLM", "ForTokenClassification"):
        with pytest.raises(ValueError, match="give either input_ids or inputs_embeds"):
            built("v1", head)(labels=torch.zeros(3, LENGTH).long())
    with pytest.raises(ValueError, match=r"input_ids have the shape \[0, 9\]"):
        built("v1", "ForCausalLM")(torch.zeros(0, 9).long(), labels=torch.zeros(0, 9).long())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused_as_a_label(number):
    labels = torch.tensor([0.5, number, -100.0])
    with pytest.raises(ValueError, match=f"label {number} is no number to learn.*-100"):
        regression_loss(torch.zeros(3, 1), labels)
    assert regression_loss(torch.ones(3, 1), labels.nan_to_num(-100.0, posinf=-100.0)).item() == 0.25


def test_a_width_that_no_pairs_fill_is_refused_with_both_numbers():
    for facts in ({}, V2, SHAPES["linear"], SHAPES["sinusoidal"], WRITES):
        for width, heads, words in ((20, 4, "20 .*4"), (34, 4, "34 .*4"), (15, 1, "15 .*1"), (16, 3, "16 .*3")):
            with pytest.raises(ValueError, match=f"hidden_size {words}.*use a multiple of {2 * heads}"):
                HFRoFormerConfig(**{**SIZES, **facts, "hidden_size": width, "num_attention_heads": heads})
        config = HFRoFormerConfig(**{**SIZES, **facts})
        config.num_attention_heads = 16
        with pytest.raises(ValueError, match=r"hidden_size 16 .*16"):
            HFRoFormerModel(config)


# the state of a process, and what ran before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@every_shape
@torch.no_grad()
def test_the_default_dtype_changes_no_answer(shape, dtype):
    model, ids = built(shape), some_ids()
    wanted = read(model, ids, attention_mask=MASK)
    fresh = copy.deepcopy(model)
    fresh.rotary_emb._tables.clear()
    torch.set_default_dtype(dtype)
    try:
        got = read(fresh, ids, attention_mask=MASK)
        born = HFRoFormerModel(model.config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, wanted)
    assert born.dtype == dtype
    born.float().load_state_dict(model.state_dict())
    assert torch.equal(read(born, ids, attention_mask=MASK), wanted)


@torch.no_grad()
def test_the_default_device_changes_no_answer():
    for shape in SHAPES:
        model, ids = built(shape), some_ids()
        wanted = read(copy.deepcopy(model), ids, attention_mask=MASK)
        # a tensor that is made without a device would have no numbers
        with torch.device("meta"):
            got = read(model, ids, attention_mask=MASK)
        assert torch.equal(got, wanted), shape


@every_shape
@torch.no_grad()
def test_ranges_in_half_precision_change_no_answer(shape, monkeypatch):
    plain = torch.arange

    def rounded(*args, **kwargs):
        made = plain(*args, **kwargs)
        return made.bfloat16() if made.is_floating_point() else made

    model, ids = built(shape, **({"max_position_embeddings": 600} if shape == "learned" else {})), some_ids(length=600)
    wanted = read(model, ids)
    monkeypatch.setattr(torch, "arange", rounded)
    again = HFRoFormerModel(model.config).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(read(again, ids), wanted)


@every_shape
def test_no_answer_depends_on_what_ran_before_or_on_how_it_was_copied(shape):
    facts = {"max_position_embeddings": 700} if shape == "learned" else {}
    model, ids = built(shape, **facts), some_ids()
    with torch.no_grad():
        wanted = read(model, ids, attention_mask=MASK)
    with torch.inference_mode():
        read(model, some_ids(length=600))
    copies = [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)]
    for other in copies:
        with torch.inference_mode():
            assert torch.equal(read(other, ids, attention_mask=MASK), wanted)
        states = read(other, ids, attention_mask=MASK)
        assert torch.equal(states.detach(), wanted)
        states.sum().backward()
        with torch.no_grad():
            assert torch.equal(read(other.train(), ids, attention_mask=MASK), wanted)
            other.eval()


@every_shape
@torch.no_grad()
def test_a_cache_that_holds_nothing_changes_nothing(shape):
    model, ids = built(shape), some_ids()
    wanted = read(model, ids)
    got = model(ids, **{CACHE_ARGUMENT: DynamicCache(config=model.config)}).last_hidden_state
    torch.testing.assert_close(got, wanted, **TOLERANCE)


def decoders():
    """Name the shapes that can write, and what makes a decoder of them."""
    linear = {"attention_kind": "linear"}
    relative = {"rotary_value": "relative"}
    return {
        "v1": {}, "V2": V2, "English": {"rotary_value": True}, "turned back": relative, "linear": linear,
        "prefix": {"attention_pattern": "prefix"}, "dynamic": DYNAMIC, "sinusoidal": {"position_kind": "sinusoidal"},
        "learned": {"position_kind": "learned"}, "window": {"attention_window": 4},
    }  # fmt: skip


@pytest.mark.parametrize("name", decoders())
@torch.no_grad()
def test_after_the_prompt_each_step_sees_one_token_and_segments_follow(name, monkeypatch):
    model = vivid(HFRoFormerForCausalLM(HFRoFormerConfig(**{**SIZES, **WRITES, **decoders()[name]})))
    ids, kinds = some_ids(rows=2, length=5), torch.tensor([[0, 0, 0, 1, 1]] * 2)
    options = {"max_new_tokens": 7, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    widths, segments = [], []
    plain = model.roformer.forward

    def watched(**kwargs):
        widths.append(kwargs["input_ids"].shape[1])
        segments.append(kwargs["token_type_ids"].shape[1])
        return plain(**kwargs)

    monkeypatch.setattr(model.roformer, "forward", watched)
    cached = model.generate(ids, token_type_ids=kinds, **options)
    assert widths == segments == [5, 1, 1, 1, 1, 1, 1]
    assert torch.equal(model.generate(ids, token_type_ids=kinds, use_cache=False, **options), cached)


@torch.no_grad()
def test_the_length_of_a_cache_changes_no_short_answer():
    """The scaling goes by the trained length, which is 8, and by the text, never by the room that was made for it."""
    model = built("dynamic, causal", "ForCausalLM")
    for length in (6, 20):
        ids = some_ids(length=length)
        wanted = model(ids, use_cache=False).logits
        for room in (32, 64, 256):
            cache = StaticCache(config=model.config, max_cache_len=room)
            torch.testing.assert_close(model(ids, **{CACHE_ARGUMENT: cache}).logits, wanted, **TOLERANCE)
        for most in (8, 64):
            facts = {**DYNAMIC["rope_parameters"]}
            longer = built("v1", "ForCausalLM", rope_parameters=facts, max_position_embeddings=most, **WRITES)
            same = torch.equal(longer(ids[:, :6], use_cache=False).logits, model(ids[:, :6], use_cache=False).logits)
            assert same


# building, loading, tying


@every_head
@torch.no_grad()
def test_every_head_is_built_and_run_on_meta(head):
    for shape in SHAPES:
        kind = getattr(hf_roformer, f"HFRoFormer{head}")
        with torch.device("meta"):
            model = kind(config_of(shape)).eval()
            ids = torch.ones(2, 3, 7, dtype=torch.long) if head == "ForMultipleChoice" else torch.ones(2, 7).long()
            out = model(ids, attention_mask=torch.ones_like(ids), use_cache=False)
        assert all(value.is_meta for value in model.state_dict().values())
        assert next(iter(out.values())).is_meta


@every_shape
@torch.no_grad()
def test_a_dry_run_without_numbers_runs_and_leaves_nothing_behind(shape):
    """As programs make it that estimate the memory of a training."""
    model, ids = built(shape), some_ids()
    wanted = read(copy.deepcopy(model), ids, attention_mask=MASK)
    with FakeTensorMode(allow_non_fake_inputs=True) as dry:
        for inputs in ({}, {"attention_mask": dry.from_tensor(MASK)}):
            assert read(model, dry.from_tensor(ids), **inputs).shape == wanted.shape
    got = read(model, ids, attention_mask=MASK)
    assert type(got) is torch.Tensor
    assert torch.equal(got, wanted)


@every_shape
@torch.no_grad()
def test_a_network_born_on_meta_comes_to_life_whichever_way(shape):
    model, ids = built(shape, "ForMaskedLM"), some_ids()
    wanted = model(ids).logits
    with torch.device("meta"):
        emptied, assigned = (type(model)(model.config).eval() for _ in range(2))
    emptied.to_empty(device="cpu")
    for tensor in itertools.chain(emptied.buffers(), emptied.parameters()):
        tensor.fill_(7)
    emptied.init_weights()
    assert all(not (value == 7).any() for value in emptied.state_dict().values())
    assert emptied(ids).logits.isfinite().all()
    emptied.load_state_dict(model.state_dict())
    assigned.load_state_dict(model.state_dict(), assign=True)
    for other in (emptied, assigned):
        assert not any(value.is_meta for value in itertools.chain(other.buffers(), other.parameters()))
        assert torch.equal(other(ids).logits, wanted)


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "learned"])
@torch.no_grad()
def test_a_length_given_at_load_is_taken_whatever_the_network(shape, tmp_path):
    model, ids = built(shape, "ForMaskedLM"), some_ids(length=6)
    model.save_pretrained(tmp_path)
    wanted = model(ids).logits
    for length in (7, 500):
        loaded = type(model).from_pretrained(tmp_path, max_position_embeddings=length)
        assert loaded.config.max_position_embeddings == length
        # yarn chooses its pairs by the trained length, and may
        if shape != "yarn":
            torch.testing.assert_close(loaded(ids).logits, wanted, **TOLERANCE)
        assert loaded(some_ids(length=90)).logits.isfinite().all()


@pytest.mark.parametrize("shape", ["v1", "V2", "V2, narrow", "linear", "causal"])
def test_scores_stay_tied_through_every_copy_and_cast(shape, tmp_path):
    def tied(model):
        scores, words = model.get_output_embeddings(), model.get_input_embeddings()
        predictions = model.cls.predictions
        return scores.weight is words.weight and (scores.bias is None or scores.bias is predictions.bias)

    model = built(shape, "ForCausalLM" if shape == "causal" else "ForMaskedLM")
    assert tied(model)
    model.resize_token_embeddings(95)
    for copied in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model).bfloat16()):
        assert tied(copied)
        assert copied.get_output_embeddings().weight.shape[0] == 95
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True, dtype=torch.bfloat16)
    assert tied(loaded)
    assert not any(info.values())


@every_shape
def test_every_parameter_of_every_network_learns(shape):
    model, ids = built(shape, "ForMaskedLM").train(), some_ids()
    model(ids, attention_mask=MASK, token_type_ids=ids % 2, labels=ids).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert all(parameter.requires_grad for parameter in model.parameters())


@every_shape
def test_the_blocks_that_may_not_be_cut_are_there_and_all_parameters_learn(shape):
    model = built(shape, "ForTokenClassification")
    kinds = {type(module).__name__ for module in model.modules()}
    assert set(model._no_split_modules) <= kinds
    inside = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    held = {id(parameter) for module in inside for parameter in module.parameters()}
    left = {name.split(".")[0] for name, parameter in model.named_parameters() if id(parameter) not in held}
    assert left <= {"classifier", "roformer"}
    assert all(parameter.requires_grad and parameter.is_floating_point() for parameter in model.parameters())


# the turn


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    "shape", [name for name in SHAPES if name not in ("prefix", "dynamic, causal", "linear, random")]
)
def test_gradients_row_by_row_are_those_of_the_rows_alone(shape):
    """By vmap, as private training asks for them."""
    model, ids = built(shape), some_ids()
    weights = dict(model.named_parameters())

    def loss(weights, row, seen):
        inputs = {"attention_mask": seen[None], "use_cache": False}
        states = torch.func.functional_call(model, weights, (row[None],), inputs).last_hidden_state
        return (states.sin() * seen[None, :, None]).sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, ids, MASK)
    for number in range(3):
        alone = torch.func.grad(loss)(weights, ids[number], MASK[number])
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name][number], gradient, rtol=1e-4, atol=1e-4, msg=name)


def test_a_unit_vector_turns_within_its_pair():
    from hf_roformer.rotary import rotate, rotation_frequencies, rotation_table

    for channel, position, width in itertools.product(range(8), (0, 1, 5, 1535), (8, 16)):
        table = rotation_table(torch.tensor([[position]]), rotation_frequencies(width, theta=10000.0))
        unit = torch.zeros(1, 1, 1, width)
        unit[..., channel] = 1
        wanted = torch.zeros(width, dtype=torch.float64)
        angle = torch.tensor(position * 10000.0 ** (-2 * (channel // 2) / width), dtype=torch.float64)
        wanted[channel] = angle.cos()
        wanted[channel ^ 1] = angle.sin() * (1 if channel % 2 == 0 else -1)
        torch.testing.assert_close(rotate(unit, table)[0, 0, 0].double(), wanted, rtol=0, atol=1e-7)


def test_halves_turn_like_neighbours_once_rows_are_permuted_and_only_then():
    """Four heads of eight, biases too: rows 0, 2, 4, 6, 1, 3, 5, 7 of each head."""
    from hf_roformer.rotary import rotate, rotation_frequencies, rotation_table

    hidden, frequencies = torch.randn(7, 32), rotation_frequencies(8, theta=10000.0)
    weights, biases = torch.randn(2, 32, 32), torch.randn(2, 32)
    table = rotation_table(torch.arange(7)[None], frequencies)
    angles = torch.arange(7)[:, None] * frequencies.float()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def heads(permuted):
        rows = (torch.arange(4)[:, None] * 8 + (order if permuted else torch.arange(8))).flatten()
        return [
            (hidden @ w[rows].T + b[rows]).view(1, 7, 4, 8).transpose(1, 2)
            for w, b in zip(weights, biases, strict=True)
        ]

    def by_halves(x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1
        )

    wanted = torch.matmul(*(rotate(x, table) if n == 0 else rotate(x, table).mT for n, x in enumerate(heads(False))))
    for permuted in (True, False):
        query, key = map(by_halves, heads(permuted))
        difference = (query @ key.mT - wanted).abs().max()
        assert (difference < 1e-4) == permuted


# around the library


PAIRS = [
    ({}, {}),
    (V2, V2),
    ({"attention_kind": "linear"}, {}),
    ({"position_kind": "sinusoidal"}, DYNAMIC),
    ({"rotary_value": True}, {"rotary_value": "relative"}),
]


@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces a better way:FutureWarning")
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS, ids=str)
def test_every_pair_of_encoder_and_decoder_writes_the_same_with_a_cache_as_without(encoder, decoder):
    reader = HFRoFormerModel(HFRoFormerConfig(**{**SIZES, **encoder}))
    facts = {**SIZES, **decoder, **WRITES, "add_cross_attention": True}
    model = EncoderDecoderModel(encoder=reader, decoder=HFRoFormerForCausalLM(HFRoFormerConfig(**facts)))
    model = vivid(model)
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    source, mask = some_ids(rows=2), torch.ones(2, LENGTH).long()
    mask[1, 6:] = 0
    loss = model(input_ids=source, attention_mask=mask, labels=some_ids(rows=2, length=7)).loss
    assert loss.isfinite()
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "decoder_start_token_id": 1}
    cached = model.generate(source, attention_mask=mask, **options)
    assert torch.equal(model.generate(source, attention_mask=mask, use_cache=False, **options), cached)
    alone = model.generate(source[1:, :6], **options)
    assert torch.equal(alone[0], cached[1])


def test_no_tensor_of_the_default_holds_every_pair_of_tokens():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made = [x for x in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(x, torch.Tensor)]
            self.count = max([self.count, *(x.numel() for x in made)])
            return out

    ids = some_ids(rows=1, length=1024)
    for shape in ("v1", "V2", "English", "turned back", "causal", "sinusoidal", "linear", "dynamic"):
        model = built(shape)
        assert model.config._attn_implementation == "sdpa"
        with torch.no_grad(), Largest() as largest:
            read(model, ids)
        assert largest.count < 2 * 1024 * 1024, shape


@pytest.mark.parametrize("version", ["4.40.1", "5.16.0", "5.3.0.dev0", "5.0.0rc3", "5.16rc1", "5", "unknown"])
def test_an_older_library_is_named_with_the_one_that_is_needed(version, monkeypatch):
    monkeypatch.setattr(library_version.transformers, "__version__", version)
    with pytest.raises(ImportError, match=rf"needs transformers 5\.17 or later, and {version} is installed"):
        library_version.refuse_older_library()


@pytest.mark.parametrize("version", ["5.17.0", "5.100.0.dev0", "6.0", "5.17rc1", "5.24.0+local", "v5.20"])
def test_a_library_that_is_new_enough_is_taken(version, monkeypatch):
    monkeypatch.setattr(library_version.transformers, "__version__", version)
    library_version.refuse_older_library()


def test_shipped_files_name_nothing_private_of_the_libraries():
    folder = Path(hf_roformer.__file__).parent
    shipped, found = {"modeling_roformer", "configuration_roformer", "tokenization_roformer"}, []
    while True:
        more = {
            node.module
            for name in shipped
            for node in ast.walk(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.level
        }
        if more <= shipped:
            break
        shipped |= more
    for name in shipped:
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                words = [*node.module.split("."), *(alias.name for alias in node.names)]
                found += [f"{name}: {word}" for word in words if word.startswith("_")]
    assert found == []


# what people run around a folder


WORDS = "天地人你我他上下今明后来去"


@pytest.fixture(scope="module")
def tokenizer():
    return HFRoFormerTokenizer(vocab=build_char_vocabulary([WORDS + "abc"], size=60))


def saved(tokenizer, folder, head, shape="v1", **facts):
    """Save a small network with its tokenizer."""
    model = built(shape, head, vocab_size=len(tokenizer), **facts)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def numbers_of(answer):
    """Return every number of a pipeline's answer, in order."""
    if isinstance(answer, dict):
        return [number for name in sorted(answer) for number in numbers_of(answer[name])]
    if isinstance(answer, (list, tuple)):
        return [number for item in answer for number in numbers_of(item)]
    return [] if isinstance(answer, str) or answer is None else [float(answer)]


PIPELINES = {
    "fill-mask": "ForMaskedLM",
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "feature-extraction": "Model",
    "text-generation": "ForCausalLM",
}


@pytest.mark.parametrize("shape", ["v1", "V2", "linear"])
@pytest.mark.parametrize("task", PIPELINES)
def test_pipelines_answer_each_text_in_a_batch_as_alone_and_take_long_ones(task, shape, tokenizer, tmp_path):
    saved(tokenizer, tmp_path, PIPELINES[task], shape)
    pipe = transformers.pipeline(task, model=str(tmp_path), device="cpu")
    texts = ["天地人", "我" * 4 + "他", WORDS * 20]
    texts = [f"[MASK]{text}" for text in texts] if task == "fill-mask" else texts
    options = {"max_new_tokens": 3, "do_sample": False} if task == "text-generation" else {}
    alone = [pipe(text, **options) for text in texts]
    together = pipe(texts, batch_size=3, **options)
    for one, other in zip(alone, together, strict=True):
        if task == "feature-extraction":
            # pads have states too
            other = [other[0][: len(one[0])]]
        torch.testing.assert_close(torch.tensor(numbers_of(other)), torch.tensor(numbers_of(one)), rtol=0, atol=1e-4)
        if task == "text-generation":
            assert [x["generated_text"] for x in other] == [x["generated_text"] for x in one]


def test_a_text_past_a_learned_table_is_refused_by_its_number(tokenizer, tmp_path):
    saved(tokenizer, tmp_path, "ForSequenceClassification", "learned")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path), device="cpu")
    with pytest.raises(ValueError, match="a token has position 64, and position_kind 'learned' has 64 rows"):
        pipe(WORDS * 20)
    assert pipe(WORDS * 20, truncation=True, max_length=64) == pipe((WORDS * 20)[:62])


def test_sentence_transformers_embed_a_folder_alone_as_in_a_batch(tokenizer, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = saved(tokenizer, tmp_path, "Model")
    embedder = sentence_transformers.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    texts = ["天地人", "我他", " ".join(WORDS * 16)]
    together = torch.from_numpy(embedder.encode(texts, batch_size=3))
    for number, text in enumerate(texts):
        alone = torch.from_numpy(embedder.encode([text], batch_size=1))[0]
        torch.testing.assert_close(together[number], alone, **TOLERANCE)
    inputs = tokenizer(texts[0], return_tensors="pt")
    with torch.no_grad():
        wanted = model(**inputs).last_hidden_state[0].mean(dim=0)
    torch.testing.assert_close(together[0], wanted, **TOLERANCE)
    assert embedder.max_seq_length in (None, tokenizer.model_max_length, model.config.max_position_embeddings)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("shape", ["v1", "V2", "linear"])
def test_the_usual_names_of_adapters_are_there_and_no_angle_is_trainable(shape, tmp_path):
    peft = pytest.importorskip("peft")
    model, ids = built(shape, "ForSequenceClassification"), some_ids()
    plain = copy.deepcopy(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False))
    learning = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert len(learning) == 2 * 2 * 2
    assert all("lora_" in name and (".query." in name or ".value." in name) for name in learning)
    wanted = adapted.eval()(ids).logits
    assert (wanted - plain(ids).logits).abs().max() > 1e-4
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(plain, tmp_path).eval()
    torch.testing.assert_close(again(ids).logits, wanted, rtol=0, atol=0)
    torch.testing.assert_close(again.merge_and_unload()(ids).logits, wanted, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:Cannot (en|dis)able progress bars:UserWarning")
def test_weights_are_on_disk_when_an_upload_fails(settings, tmp_path):
    from hf_roformer.examples import write_down
    from hf_roformer.hub_upload import publish_run
    from hf_roformer.training import finetune

    wanted = {"push_to_hub": True, "hub_model_id": "somebody/something", "max_steps": 2, "logging_steps": 1}
    wanted |= {"num_train_epochs": 1, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    task, training = settings(single(), **wanted)
    run = finetune(task, training)
    write_down(run.folder, run.facts)
    with pytest.raises(SystemExit, match=r"scripts/publish\.py"):
        publish_run(run.folder, training)
    held = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= held


if __name__ == "__main__":
    print("| fault | what was wrong elsewhere | tests that hold it right here |\n|---|---|---|")
    for number, (wrong, told) in KINDS.items():
        print(f"| {number} | {wrong} | {', '.join(f'{file}::{name}' for file, name in places(told))} |")
